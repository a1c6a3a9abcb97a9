//! op sgd(Tensor(a!) param, Tensor grad, *, float lr, float momentum=0.) -> ()
//! dtypes float32
//! shape param [...S]
//! shape grad [...S]
//! example param=[5] grad=[5] lr=0.1
//! forward
//! kernel sgd
//! bind n = numel(grad)
__global__ void sgd(float *param, const float *grad, float lr, unsigned n) {}
