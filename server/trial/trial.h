#pragma once

// A trial: a file's kernels at work on random tensors, in processes of their own, before anything
// serves them. `opctl check --run` and `--grad` become this; no daemon is needed.
//
// "opd trial run FILE [SEED [DEADLINE [DTYPES [json|lines [DEVICE]]]]]" compiles the kernels of the
// file's examples once for each stage, and runs each stage as "opd trial-stage": without more than
// guards, with the address sanitizer, with the thread sanitizer; and on a GPU in checked builds,
// where there is one. DEVICE: "cpu", or "cuda:0" alone. "opd trial grad ..." has one stage, which
// proves gradients. "opd trial replay N [SEED [DEADLINE [CACHE [json]]]]" runs a fault that was
// kept (trial_replay.h) in place of examples; "opd trial faults CACHE [json]" lists them. Empty
// words stand for the defaults. As "lines" it says no more than what is wrong, for the daemon:
// "wrong", or "failed", a tab and what.

int trial_main(int argc, char **argv);       // 0: all is well; 1: something was found; 2: usage
int trial_stage_main(int argc, char **argv); // DIR FILE SEED DTYPES STAGE SECONDS
