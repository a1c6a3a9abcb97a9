#include "host_source.h"
#include <string.h>
bool host_source_check(const char *file, const char *source, struct opd_err *err) { (void)file; (void)source; (void)err; return true; }
bool host_source_is_loop(const char *source) { (void)source; return false; }
void host_source_rewrite(const char *source, struct buf *out) { buf_append_str(out, source); }
