#include <string.h>

#include "base/mem.h"
#include "compiler/compile.h"
#include "compiler/host_source.h"

// `then`: what is left in a word's place, so that little else is wrong there.
static const struct {
    const char *words, *what, *then;
} refused[] = {
    { "asm __asm __asm__", "inline PTX (asm)", "asm" },
    { "wmma", "tensor-core code (wmma)", "wmma" },
    { "nvcuda", "tensor-core code (nvcuda)", "nvcuda" },
    { "mma_sync", "tensor-core code (mma_sync)", "mma_sync" },
    { "load_matrix_sync", "tensor-core code (load_matrix_sync)", "load_matrix_sync" },
    { "__cluster_dims__", "a thread block cluster", "__cluster_dims__" },
    { "cudaTextureObject_t", "a texture", "int" },
    { "tex1D tex1Dfetch tex1DGrad tex1DLod tex1DLayered tex1DLayeredGrad tex1DLayeredLod "
      "tex2D tex2Dgather tex2DGrad tex2DLod tex2DLayered tex2DLayeredGrad tex2DLayeredLod "
      "tex3D tex3DGrad tex3DLod texCubemap texCubemapLod texCubemapLayered",
      "a texture", "" },
    { "cudaSurfaceObject_t", "a surface", "int" },
    { "surf1Dread surf1Dwrite surf1DLayeredread surf1DLayeredwrite surf2Dread surf2Dwrite "
      "surf2DLayeredread surf2DLayeredwrite surf3Dread surf3Dwrite",
      "a surface", "" },
    { "__pipeline_memcpy_async __pipeline_commit __pipeline_wait_prior __pipeline_arrive_on",
      "an asynchronous copy (pipeline)", "" },
    { "cudaLaunchKernel cudaLaunchKernelEx cudaLaunchKernelExC cudaLaunchDevice "
      "cudaLaunchDeviceV2",
      "a launch from a kernel (dynamic parallelism)", "" },
};

// Of names that are too common for the preprocessor.
#define UNAVAILABLE(what) "__attribute__((unavailable(\"" what " " HOST_NOT_HERE "\")))"
static const char unavailable[] =
    "namespace cuda {\n"
    "enum thread_scope { thread_scope_system, thread_scope_device, thread_scope_block,\n"
    "    thread_scope_thread };\n"
    "template <thread_scope, class...> struct " UNAVAILABLE(
        "cuda::barrier") " barrier;\n"
                         "template <thread_scope, class...> struct " UNAVAILABLE(
                             "cuda::pipeline") " pipeline;\n"
                                               "template <class... A> " UNAVAILABLE(
                                                   "cuda::memcpy_async") " void "
                                                                         "memcpy_async(A...);\n"
                                                                         "}\n";

void cpu_refuse_append(struct buf *out)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        for (const char *word = refused[i].words; *word;) {
            size_t size = strcspn(word, " ");
            buf_printf(out, "#define %.*s _Pragma(\"GCC error \\\"%s %s\\\"\") %s\n", (int)size,
                       word, refused[i].what, HOST_NOT_HERE, refused[i].then);
            word += size + strspn(word + size, " ");
        }
    buf_append_str(out, unavailable);
}
