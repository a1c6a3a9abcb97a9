//! op      mul(Tensor input, Tensor other) -> Tensor output
//! doc     input * other, elementwise; shapes broadcast.
//! dtypes  float16 bfloat16 float32 float64
//! formula output = input * other
//! example input=[3,1000] other=[3,1000]
//! example input=[64,40] other=[40]
//! example input=[1001,131] other=[131]
//! example input=[2,3,5,7] other=[3,1,1]
//! example input=[4,1,6] other=[5,1]
