// A tensor in one dimension: the same memory, nothing is copied.
//
//! op      flatten(Tensor(a) self) -> Tensor(a)
//! doc     All elements in one dimension, row by row: a view of the same memory, not a copy.
//! dtypes  float32 float64 float16 bfloat16 bool uint8 int8 int16 int32 int64
//! shape   self [...S]
//! shape   output [numel(self)]
//! view    output self
//! example self=[2,3,5]
//! example self=[]
