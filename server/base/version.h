#pragma once

// The version of the whole: daemon, libopd, opctl. The archive that `make dist` makes is named by
// it.

#define OPD_VERSION "0.1.0"
