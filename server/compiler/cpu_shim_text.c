// The text that comes before every translation unit of the CPU device, as it lies in the
// repository; the assembler finds it from the repository's root.

__asm__(".section .rodata\n"
        ".globl cpu_shim_text\n"
        ".type cpu_shim_text, @object\n"
        "cpu_shim_text:\n"
        ".incbin \"server/executor/cpu_image.h\"\n"
        ".incbin \"server/compiler/cpu_shim.h\"\n"
        ".incbin \"server/compiler/cpu_float.h\"\n"
        ".incbin \"server/compiler/cpu_double.h\"\n"
        ".incbin \"server/compiler/cpu_math.h\"\n"
        ".incbin \"server/compiler/cpu_launch.h\"\n"
        ".byte 0\n"
        ".size cpu_shim_text, . - cpu_shim_text\n"
        ".previous\n");
