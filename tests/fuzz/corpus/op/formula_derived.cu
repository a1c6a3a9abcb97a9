//! op f(Tensor x, Tensor z, Tensor m, *, float a=0.5, int[2] k=[1, 2], str s="one") -> (Tensor y, Tensor v)
//! dtypes float16 float32
//! type bool : m
//! words s one two
//! let n = numel(x) * k[1]
//! formula t = 1 / (1 + exp(-x * a))
//! formula y = m && s == "one" ? pow(t, z) : x > 0 ? hypot(x, z) : max(t, log1p(exp(z)))
//! formula v = tanh(t) * n / (z - k[0])
//! example x=[4,5] z=[5] m=[1]
