//! op      mixed(Tensor mask, Tensor(a!) p, Tensor w, *, str mode="half", int[2] k=1, float lr) -> (Tensor y, Tensor n)
//! dtypes  float16 float32 float64
//! type    mask_t bool uint8 : mask
//! type    int32 : n
//! words   mode half square
//! let     scale = lr * k[0] / 2
//! formula z = mode == "half" ? w / 2 : w * w
//! formula big = !(z < 1) && mask
//! formula y = max(z, 1e-3) * scale - -k[1]
//! formula n = 3 * big + isnan(w)
//! formula p = fma(p, w, pow(w, 2))
//! formula grad_w = grad_y * (mode != "square" ? 1 / 2 : 2 * w) / y
//! example mask=[2,1] p=[2,3] w=[3] lr=0.5
