// y = gain[0] * a + gain[1] * b, cut to a window; what the kernel needs comes in structs.
//
//! op      blend(Tensor a, Tensor? b=None, *, float[2] gain=[1.0, 1.0], bool flip=False) -> Tensor y
//! dtypes  float16 float32 float64
//! shape   a [N, M]
//! shape   b [N, M]
//! shape   y [N, M]
//! example a=[3,5] b=[3,5] gain=[0.5, 2.0]
//! example a=[2,4] flip=True
//
//! forward
//!   kernel blend_forward
//!   bind   p.planes[0].data = a
//!   bind   p.planes[1].data = b
//!   bind   p.planes[0].weight = gain[0]
//!   bind   p.planes[1].weight = gain[1]
//!   bind   p.n[0] = N
//!   bind   p.n[1] = M
//!   bind   p.unused = 0
//! backward grad_a grad_b
//!   kernel blend_backward<scalar_t, 2>
//!   bind   size = numel(a)
//!   bind   p.grads[0] = grad_a
//!   bind   p.grads[1] = grad_b

namespace blend {

template <typename T> struct Plane {
    const T *data;
    float weight;
};

struct Params {
    bool flip; // by its own name
    Plane<scalar_t> planes[2];
    char n_planes() const { return 2; }
    int64_t n[2];
    static const int many = 3;
    scalar_t *y, *unused;
};

template <typename T, int N> struct Backward {
    T gain[N];
    const T *__restrict__ grad_y;
    T *grads[N];
    bool flip;
};

} // namespace blend

__global__ void blend_forward(const blend::Params p)
{
    CUDA_KERNEL_LOOP(i, p.n[0] * p.n[1]) {
        acc_t sum = 0;
        for (int k = 0; k < p.n_planes(); k++)
            if (p.planes[k].data)
                sum += acc_t(p.planes[k].weight) * acc_t(p.planes[k].data[i]);
        p.y[i] = scalar_t(p.flip ? -sum : sum);
    }
}

template <typename T, int N>
__global__ void blend_backward(int64_t M, blend::Backward<T, N> p, int64_t size)
{
    CUDA_KERNEL_LOOP(i, size)
        for (int k = 0; k < N; k++)
            if (p.grads[k])
                p.grads[k][i] = T((p.flip ? -1 : 1) * acc_t(p.gain[k]) * acc_t(p.grad_y[i]));
}
