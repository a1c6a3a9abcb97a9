// Takes a compiler longer than anyone will wait: each template needs two others.
//
//! op      bomb(Tensor x) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//
//! forward
//!   kernel  bomb

template <unsigned long long PATH, int DEPTH> struct Tree {
    static const int value = Tree<2 * PATH, DEPTH - 1>::value + Tree<2 * PATH + 1, DEPTH - 1>::value;
};
template <unsigned long long PATH> struct Tree<PATH, 0> {
    static const int value = 1;
};

extern "C" __global__ void bomb(const float *x, float *y, int N)
{
    y[0] = x[0] + Tree<1, 50>::value;
}
