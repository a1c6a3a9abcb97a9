//! op      mse_loss(Tensor input, Tensor target, *, str reduction="mean") -> Tensor loss
//! doc     (input - target)^2, its mean or its sum, as torch.nn.functional.mse_loss.
//! dtypes  float16 bfloat16 float32 float64
//! autocast float32
//! words   reduction none mean sum
//! formula e = (input - target) * (input - target)
//! formula loss = reduction == "none" ? e : reduction == "sum" ? sum(e) : mean(e)
//! example input=[3,1000] target=[3,1000]
//! example input=[64,40] target=[40] reduction="sum"
//! example input=[7,5] target=[7,5] reduction="none"
