// Outputs and inputs of several types, broadcast; sizes in a formula; a gradient by an output.
//
//! op      mixed(Tensor mask, Tensor x, Tensor scale, *, float p=1.5, int[2] k=[2, 3]) -> (Tensor y, Tensor n, Tensor z)
//! dtypes  float32 float64
//! type    bool : mask
//! type    int32 : n
//! let     size = numel(x) * k[1]
//! formula e = exp(x * scale)
//! formula n = mask + k[0]
//! formula y = mask ? e / size : pow(scale, p)
//! formula z = max(x, scale) * e
//! example mask=[3,1] x=[2,3,4] scale=[4]
