// Part of opd.cuh: products of matrices.
namespace opd
{
// What `matmul` in a header launches where the device has no BLAS: d [m, n] = a [m, k] @ b [k, n],
// or +=. The first of a matrix is `_at` elements from the address, its rows are `ld_` elements
// apart. TA, TB: a, b are stored transposed. Sums are kept in acc_type; the plan knows how large a
// part of d each block makes (server/op/plan_matmul.c).
#ifdef OPD_CPU
template <class A, class D> struct matmul_tile {
    enum { ROWS = 48, COLS = 64, DEPTH = 128, STRIP = 6, LANES = 64 / (int)sizeof(A) };
    typedef A lanes __attribute__((vector_size(64)));
    lanes a[ROWS * DEPTH / LANES]; // strips of STRIP rows, [depth][row] in each
    lanes b[COLS * DEPTH / LANES]; // strips of LANES columns, [depth][column] in each
    lanes sum[ROWS][COLS / LANES];

    // One strip of rows by one of columns, all of it in registers.
    void multiply(int row, int col, int depth)
    {
        const A *x = (const A *)a + row * DEPTH;
        const lanes *y = b + col * DEPTH;
        lanes s0 = sum[row][col], s1 = sum[row + 1][col], s2 = sum[row + 2][col],
              s3 = sum[row + 3][col], s4 = sum[row + 4][col], s5 = sum[row + 5][col];
        for (int q = 0; q < depth; q++, x += STRIP) {
            const lanes v = y[q];
            s0 += x[0] * v;
            s1 += x[1] * v;
            s2 += x[2] * v;
            s3 += x[3] * v;
            s4 += x[4] * v;
            s5 += x[5] * v;
        }
        sum[row][col] = s0;
        sum[row + 1][col] = s1;
        sum[row + 2][col] = s2;
        sum[row + 3][col] = s3;
        sum[row + 4][col] = s4;
        sum[row + 5][col] = s5;
    }
};

// Copies `n` by `depth` elements into strips of WIDTH, with zeros up to whole strips. ALONG: those of
// one depth are neighbours in memory; else those of one strip's row are.
template <int WIDTH, int DEPTH, bool ALONG, class T, class A>
inline void matmul_pack(A *to, const T *from, int n, int depth, int64_t ld)
{
    for (int at = 0; at < n; at += WIDTH, to += WIDTH * DEPTH)
        if (n - at >= WIDTH)
            for (int q = 0; q < depth; q++)
                for (int i = 0; i < WIDTH; i++)
                    to[q * WIDTH + i] = (A)from[ALONG ? at + i + q * ld : (at + i) * ld + q];
        else
            for (int q = 0; q < depth; q++)
                for (int i = 0; i < WIDTH; i++)
                    to[q * WIDTH + i] = at + i >= n ? (A)0
                                        : ALONG     ? (A)from[at + i + q * ld]
                                                    : (A)from[(at + i) * ld + q];
}

template <class T, class D, bool TA, bool TB>
__global__ void matmul(D *d, const T *a, const T *b, int64_t m, int64_t n, int64_t k, int64_t ldd,
                       int64_t lda, int64_t ldb, int64_t d_at, int64_t a_at, int64_t b_at,
                       int accumulate)
{
    typedef typename acc_type<T>::type A;
    typedef matmul_tile<A, D> tile;
    __shared__ tile t;
    const int64_t across = (n + tile::COLS - 1) / tile::COLS;
    const int64_t row = blockIdx.x / across * tile::ROWS, col = blockIdx.x % across * tile::COLS;
    const int rows = (int)min(m - row, (int64_t)tile::ROWS);
    const int cols = (int)min(n - col, (int64_t)tile::COLS);
    a += a_at + row * (TA ? 1 : lda);
    b += b_at + col * (TB ? ldb : 1);
    d += d_at + row * ldd + col;
    memset((void *)t.sum, 0, sizeof t.sum);
    for (int64_t p = 0; p < k; p += tile::DEPTH) {
        const int depth = (int)min(k - p, (int64_t)tile::DEPTH);
        matmul_pack<tile::STRIP, tile::DEPTH, TA>((A *)t.a, a + p * (TA ? lda : 1), rows, depth,
                                                  lda);
        matmul_pack<tile::LANES, tile::DEPTH, !TB>((A *)t.b, b + p * (TB ? 1 : ldb), cols, depth,
                                                   ldb);
        for (int j = 0; j * tile::LANES < cols; j++)
            for (int i = 0; i < rows; i += tile::STRIP)
                t.multiply(i, j, depth);
    }
    for (int i = 0; i < rows; i++) {
        const A *sum = (const A *)t.sum[i];
        D *to = d + i * ldd;
        for (int j = 0; j < cols; j++)
            to[j] = accumulate ? D((A)to[j] + sum[j]) : D(sum[j]);
    }
}
#else
template <class T, class D, bool TA, bool TB>
__global__ void __launch_bounds__(256)
    matmul(D *d, const T *a, const T *b, int64_t m, int64_t n, int64_t k, int64_t ldd, int64_t lda,
           int64_t ldb, int64_t d_at, int64_t a_at, int64_t b_at, int accumulate)
{
    typedef typename acc_type<T>::type A;
    enum { TILE = 64, DEPTH = 16, EACH = 4, THREADS = 256 };
    __shared__ vec<A, EACH> a_tile[DEPTH][TILE / EACH + 1], b_tile[DEPTH][TILE / EACH + 1];
    const int64_t across = (n + TILE - 1) / TILE;
    const int64_t row = blockIdx.x / across * TILE, col = blockIdx.x % across * TILE;
    const int x = threadIdx.x % (TILE / EACH), y = threadIdx.x / (TILE / EACH);
    A sum[EACH][EACH] = {};
    a += a_at;
    b += b_at;
    d += d_at;
    for (int64_t p = 0; p < k; p += DEPTH) {
        // Neighbouring threads read neighbouring elements, whichever way a matrix lies.
#pragma unroll
        for (int i = threadIdx.x; i < TILE * DEPTH; i += THREADS) {
            const int q = TA ? i / TILE : i % DEPTH, r = TA ? i % TILE : i / DEPTH;
            const int64_t at = TA ? (p + q) * lda + row + r : (row + r) * lda + p + q;
            a_tile[q][r / EACH][r % EACH] = p + q < k && row + r < m ? A(a[at]) : A(0);
        }
#pragma unroll
        for (int i = threadIdx.x; i < TILE * DEPTH; i += THREADS) {
            const int q = TB ? i % DEPTH : i / TILE, c = TB ? i / DEPTH : i % TILE;
            const int64_t at = TB ? (col + c) * ldb + p + q : (p + q) * ldb + col + c;
            b_tile[q][c / EACH][c % EACH] = p + q < k && col + c < n ? A(b[at]) : A(0);
        }
        __syncthreads();
#pragma unroll
        for (int q = 0; q < DEPTH; q++) {
            const vec<A, EACH> left = a_tile[q][y], right = b_tile[q][x];
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++)
                    sum[i][j] += left[i] * right[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int64_t r = row + y * EACH + i, c = col + x * EACH + j;
            if (r < m && c < n) {
                D *to = d + r * ldd + c;
                *to = accumulate ? D((A)*to + sum[i][j]) : D(sum[i][j]);
            }
        }
}

// The same, for what is so small that the tiles of a library take longer: LANES threads, 1 or a warp,
// make each element of d.
template <class T, class D, bool TA, bool TB, int LANES>
__global__ void __launch_bounds__(256)
    matmul_small(D *d, const T *a, const T *b, int64_t m, int64_t n, int64_t k, int64_t ldd,
                 int64_t lda, int64_t ldb, int64_t d_at, int64_t a_at, int64_t b_at, int accumulate)
{
    typedef typename acc_type<T>::type A;
    const int at = (blockIdx.x * 256 + threadIdx.x) / LANES, lane = threadIdx.x % LANES;
    const int row = at / (int)n, col = at % (int)n;
    A sum = 0;
    if (row < m)
#pragma unroll 4
        for (int p = lane; p < k; p += LANES)
            sum += A(a[a_at + (TA ? p * lda + row : row * lda + p)]) *
                   A(b[b_at + (TB ? col * ldb + p : p * ldb + col)]);
    if (LANES > 1)
        sum = warp_reduce_sum(sum);
    if (row < m && lane == 0) {
        D *to = d + d_at + row * ldd + col;
        *to = accumulate ? D((A)*to + sum) : D(sum);
    }
}
#endif

} // namespace opd
