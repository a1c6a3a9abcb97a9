// A sum that changes with every bit and every place: of (word + 1) * (index | 1) over all words, modulo 2^64.
//
//! op      checksum(Tensor x) -> Tensor sum
//! type    int32 : x
//! type    int64 : sum
//! shape   x [N]
//! shape   sum []
//! example x=[1000]
//
//! forward
//!   zero    sum
//!   kernel  checksum
//!   grid    min(cdiv(N, 256), cuda ? 4096 : 64)

extern "C" __global__ void checksum(const int *x, int64_t *sum, int64_t N)
{
    unsigned long long mine = 0;
    CUDA_KERNEL_LOOP(i, N)
    mine += ((unsigned long long)(unsigned)x[i] + 1) * ((unsigned long long)i | 1);
    atomicAdd((unsigned long long *)sum, mine);
}
