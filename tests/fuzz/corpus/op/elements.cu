//! op elements(Tensor x, Tensor w, Tensor? b=None, *, float a=0.5, int[2] k=1, str mode="mul") -> Tensor y
//! dtypes float16 float32
//! words mode mul add
//! shape x y [N, C]
//! shape w [C, C]
//! shape b [C]
//! scratch s acc_t [N, C]
//! scratch i int32 [C]
//! example x=[3,4] w=[4,4] b=[4]
//! forward
//! fill i N
//! formula s = (mode == "mul" ? x * a : twice(x)) + (present(b) ? k[1] * b : 0) + i
//! matmul y = x @ w + b when N > 2
//! formula y = s otherwise
//! repeat t < 2
//! formula y = y + t * s
//! end
//! backward grad_x
//! formula grad_x = grad_y * a
//! backward grad_b
//! sum grad_b = grad_y * 2 over 0
__device__ acc_t twice(acc_t x) { return 2 * x; }
