#pragma once

// The parameters of a request, packed one after the other.
//
//     struct params params;
//     params_init(&params, 2);
//     params_str(&params, op);
//     params_nil(&params);
//     return session_ask(session, "pin", &params, show); // finishes them

#include <stdint.h>

#include <msgpack.h>

struct params {
    msgpack_sbuffer bytes;
    msgpack_packer mp;
};

void params_init(struct params *params, size_t count); // begins an array of so many
void params_finish(struct params *params);

void params_str(struct params *params, const char *text);
void params_text(struct params *params, const char *text, size_t size);
void params_int(struct params *params, int64_t value);
void params_bool(struct params *params, bool value);
void params_nil(struct params *params);
void params_map(struct params *params, size_t count);      // that many keys and values follow
void params_list(struct params *params, const char *list); // "a,b": an array of strings
