//! op      field(Tensor x, Tensor h, *, int seed, int sequence=0, int offset=0) -> (Tensor total, Tensor scan, Tensor best, Tensor groups, Tensor halves, Tensor words, Tensor normals)
//! doc     A published file's manner: its headers, its host code, and what kernels use of both.
//! dtypes  float32
//! type    float16 : h halves
//! type    int32 : best
//! type    int64 : words
//! shape   x [R, C]
//! shape   h [M]
//! shape   total [R]
//! shape   scan [R, C]
//! shape   best [R]
//! shape   groups [R, 64]
//! shape   halves [M]
//! shape   words [10]
//! shape   normals [4]
//! example x=[3,300] h=[40] seed=1
//! forward
//!   kernel rows<scalar_t, 100>
//!   grid   R
//!   block  100
//!   kernel members
//!   grid   R
//!   block  64
//!   kernel pairs
//!   block  32
//!   grid   cdiv(M, 64)
//!   kernel draw
//!   grid   1
//!   block  1
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cub/cub.cuh>
#include <cuda_fp16.h>
#include <curand_kernel.h>
#include <limits>
#include <math_constants.h>
#include <tuple>
#include <type_traits>
#include <vector>
#include "field_host.h"

namespace cg = cooperative_groups;

template <typename T> std::tuple<T, int> least_of_none() {
  return std::make_tuple(std::numeric_limits<T>::lowest(), 0);
}

template <typename T, int THREADS>
__global__ void rows(const T *__restrict__ x, T *total, T *scan, int *best, int C) {
  using Reduce = cub::BlockReduce<float, THREADS>;
  using Pair = cub::KeyValuePair<int, float>;
  using ReducePair = cub::BlockReduce<Pair, THREADS>;
  using Scan = cub::BlockScan<float, THREADS>;
  using Load = cub::BlockLoad<T, THREADS, 4, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
  using Store = cub::BlockStore<T, THREADS, 4, cub::BLOCK_STORE_WARP_TRANSPOSE>;
  __shared__ union {
    typename Reduce::TempStorage reduce;
    typename ReducePair::TempStorage pair;
    typename Scan::TempStorage scan;
    typename Load::TempStorage load;
    typename Store::TempStorage store;
  } room;
  T v[4];
  Load(room.load).Load(x + blockIdx.x * C, v, C, T(0));
  __syncthreads();
  float sum = Reduce(room.reduce).Sum(v);
  if (threadIdx.x == 0) total[blockIdx.x] = sum;
  __syncthreads();
  float least;
  int at;
  std::tie(least, at) = least_of_none<float>();
  Pair most(at, fmaxf(least, -CUDART_INF_F));
  for (int i = threadIdx.x; i < C; i += THREADS)
    most = cub::ArgMax()(most, Pair(i, x[blockIdx.x * C + i]));
  most = ReducePair(room.pair).Reduce(most, cub::ArgMax());
  if (threadIdx.x == 0) best[blockIdx.x] = most.key;
  __syncthreads();
  Scan(room.scan).InclusiveSum(v, v);
  __syncthreads();
  Store(room.store).Store(scan + blockIdx.x * C, v, C);
}

// Of each 8 threads the largest, all of some group of odd ones, and how many are before it.
__global__ void members(const float *x, float *groups, int C) {
  cg::thread_block block = cg::this_thread_block();
  auto warp = cg::tiled_partition<32>(block);
  auto eight = cg::tiled_partition<8>(warp);
  const float v = x[block.group_index().x * C + block.thread_rank()];
  float out = cg::reduce(eight, v, cg::greater<float>());
  if (block.thread_rank() % 2) {
    auto odd = cg::coalesced_threads();
    out += 100 * cg::reduce(odd, 1.0f, cg::plus<float>()) / odd.size();
  }
  block.sync();
  out += 10000 * cg::exclusive_scan(warp, 1.0f);
  groups[cg::this_grid().thread_rank()] = out;
}

__global__ void pairs(const __half *h, __half *halves, int M) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (2 * i + 1 >= M) return;
  const half2 v = reinterpret_cast<const half2 *>(h)[i];
  half2 r = __hfma2(v, v, __float2half2_rn(0.5f));
  r = __hadd2(r, __halves2half2(__high2half(v), __low2half(v)));
  const float2 f = __half22float2(r);
  const half2 out = __hgt(v.x, v.y) ? r : __floats2half2_rn(2 * f.x, 2 * f.y);
  typedef typename std::aligned_storage<sizeof(half2), alignof(half2)>::type Words;
  reinterpret_cast<Words *>(halves)[i] = reinterpret_cast<const Words &>(out);
}

__global__ void draw(int64_t *words, float *normals, int seed, int sequence, int offset) {
  curandStatePhilox4_32_10_t philox;
  curand_init(seed, sequence, offset, &philox);
  for (int i = 0; i < 5; i++) words[i] = curand(&philox);
  curandState xorwow;
  curand_init(seed, sequence, offset, &xorwow);
  for (int i = 5; i < 10; i++) words[i] = curand(&xorwow);
  curand_init(seed, sequence, offset, &philox);
  for (int i = 0; i < 2; i++) normals[i] = curand_normal(&philox);
  curand_init(seed, sequence, offset, &philox);
  const float4 u = curand_uniform4(&philox);
  normals[2] = u.x;
  normals[3] = u.w;
}

std::vector<torch::Tensor> field_cuda(torch::Tensor x, torch::Tensor h) {
  CHECK_INPUT(x);
  auto total = torch::empty({x.size(0)}, x.options());
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "field", ([&] {
    rows<scalar_t, 100><<<x.size(0), 100, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<scalar_t>(), total.data_ptr<scalar_t>(), nullptr, nullptr, x.size(1));
  }));
  return {total};
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &field_cuda); }
