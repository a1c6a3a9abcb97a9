//! op      pair(Tensor(a) x, Tedtypes ]
//! view    u x
/ x, Tensor(b) y) -> (Uensor(a) u, /! vt_t_output
         