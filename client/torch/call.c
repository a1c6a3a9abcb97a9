#include "torch/call.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "torch/functions.h"

bool call_parse(const char *layout, struct call_argument *out)
{
    for (int n = 0; *layout; n++, out++) {
        if (n == CALL_MAX_ARGS)
            return false;
        *out = (struct call_argument){ .optional = *layout == '?' };
        layout += out->optional;
        out->is_list = *layout == '*';
        layout += out->is_list;
        out->strided = *layout == 'v';
        out->type = out->strided ? 't' : *layout;
        layout++;
    }
    out->type = '\0';
    return true;
}

// Twice the elements, the first of which are `own` until then. Returns where they are now.
static void *more_room(void *now, void *own, size_t *capacity, size_t size)
{
    void *more = mem_alloc(2 * *capacity * size);
    memcpy(more, now, *capacity * size);
    if (now != own)
        free(now);
    *capacity *= 2;
    return more;
}

static void add_word(struct call *call, uint64_t word)
{
    if (call->n_words == call->key_capacity)
        call->key = more_room(call->key, call->own_key, &call->key_capacity, sizeof word);
    call->key[call->n_words++] = word;
}

static struct call_tensor *add_tensor(struct call *call)
{
    if ((size_t)call->n_tensors == call->tensors_capacity)
        call->tensors = more_room(call->tensors, call->own_tensors, &call->tensors_capacity,
                                  sizeof *call->tensors);
    struct call_tensor *t = &call->tensors[call->n_tensors++];
    *t = (struct call_tensor){ 0 };
    return t;
}

static void read_device(struct call *call, void *tensor)
{
    int32_t type = -1, index = -1;
    torch.aoti_torch_get_device_type(tensor, &type);
    torch.aoti_torch_get_device_index(tensor, &index);
    if (type == torch.cpu)
        index = 0;
    if (call->device_type == -1) {
        call->device_type = type;
        call->device_index = index;
    } else if (call->device_type != type || call->device_index != index) {
        call->refused = "its tensors are on several devices";
    }
}

static void read_strides(struct call *call, struct call_tensor *t)
{
    int64_t *strides = NULL;
    if (torch.aoti_torch_get_strides(t->handle, &strides))
        call->refused = "a tensor of it is no plain one";
    t->strides = strides;
    for (int64_t i = 0; !t->contiguous && !call->refused && i < t->rank; i++)
        add_word(call, (uint64_t)strides[i]);
}

static void read_tensor(struct call *call, void *handle, bool strided)
{
    struct call_tensor *t = add_tensor(call);
    bool is = true;
    if (!handle || torch.aoti_torch_is_defined(handle, &is) || !is) {
        add_word(call, 0);
        return;
    }
    int32_t dtype = -1;
    int64_t *sizes = NULL;
    t->handle = handle;
    read_device(call, handle);
    if (torch.aoti_torch_get_dtype(handle, &dtype) || torch.aoti_torch_get_dim(handle, &t->rank) ||
        torch.aoti_torch_get_sizes(handle, &sizes) ||
        torch.aoti_torch_is_contiguous(handle, &t->contiguous) ||
        torch.aoti_torch_get_data_ptr(handle, &t->data))
        call->refused = "a tensor of it is no plain one";
    t->sizes = sizes;
    t->dtype = torch_dtype(dtype);
    if (t->dtype == OPD_DTYPE_NONE)
        call->refused = "a tensor of it has a dtype that opd has not";
    bool as_it_lies = strided && !t->contiguous;
    add_word(call, (uint64_t)as_it_lies << 48 | (uint64_t)t->dtype << 32 | (uint64_t)t->rank);
    for (int64_t i = 0; i < t->rank; i++)
        add_word(call, (uint64_t)sizes[i]);
    if (strided)
        read_strides(call, t);
}

static void read_string(struct call *call, void *string)
{
    size_t length = 0;
    const char *text = "";
    torch.torch_string_length(string, &length);
    torch.torch_string_c_str(string, &text);
    add_word(call, length);
    for (size_t at = 0; at < length; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, text + at, length - at < sizeof word ? length - at : sizeof word);
        add_word(call, word);
    }
}

static void read_value(struct call *call, char type, uint64_t value)
{
    if (type == 's') {
        read_string(call, (void *)(uintptr_t)value);
        return;
    }
    if (type == 'i') {
        call->last[0] = call->last[1];
        call->last[1] = (int64_t)value;
    }
    add_word(call, type == 'b' ? value & 1 : value);
}

static void read_list(struct call *call, const struct call_argument *a, void *list)
{
    size_t n = 0;
    uint64_t value = 0;
    torch.torch_list_size(list, &n);
    add_word(call, n);
    for (size_t i = 0; i < n; i++) {
        if (torch.torch_list_get_item(list, i, &value))
            call->refused = "a list of it is no plain one";
        else if (a->type == 't')
            read_tensor(call, (void *)(uintptr_t)value, a->strided);
        else
            read_value(call, a->type, value);
    }
}

static void begin(struct call *call)
{
    call->tensors = call->own_tensors;
    call->tensors_capacity = CALL_MAX_ARGS;
    call->key = call->own_key;
    call->key_capacity = CALL_OWN_KEY;
    call->n_tensors = 0;
    call->device_type = call->device_index = -1;
    call->absent = 0;
    call->refused = NULL;
    call->n_words = 1; // the device, once it is known
}

// What the argument has added begins there.
static void note_absent(struct call *call, size_t argument, int first)
{
    call->first[argument] = first;
    if (argument < 32 && (first == call->n_tensors || !call->tensors[first].handle))
        call->absent |= 1u << argument;
}

void call_finish(struct call *call)
{
    if (call->tensors != call->own_tensors)
        free(call->tensors);
    if (call->key != call->own_key)
        free(call->key);
}

static void end(struct call *call)
{
    call->key[0] = (uint64_t)(uint32_t)call->device_type << 32 | (uint32_t)call->device_index;
}

void call_gather(struct call *call, const struct call_argument *arguments, void *const *tensors,
                 const uint64_t *words, unsigned n_words)
{
    begin(call);
    for (const struct call_argument *a = arguments; a->type == 't'; a++) {
        read_tensor(call, *tensors++, a->strided);
        note_absent(call, (size_t)(a - arguments), call->n_tensors - 1);
    }
    for (unsigned i = 0; i < n_words; i++)
        add_word(call, words[i]);
    if (n_words >= 2)
        memcpy(call->last, words + n_words - 2, sizeof call->last);
    end(call);
}

static void read_argument(struct call *call, const struct call_argument *a, uint64_t value)
{
    bool is_tensor = a->type == 't' && !a->is_list;
    if (a->optional) {
        if (value == 0) {
            is_tensor ? read_tensor(call, NULL, false) : add_word(call, 0);
            return;
        }
        memcpy(&value, (const void *)(uintptr_t)value, sizeof value);
        if (!is_tensor)
            add_word(call, 1);
    }
    if (a->is_list)
        read_list(call, a, (void *)(uintptr_t)value);
    else if (is_tensor)
        read_tensor(call, (void *)(uintptr_t)value, a->strided);
    else
        read_value(call, a->type, value);
}

void call_read(struct call *call, const struct call_argument *arguments, const uint64_t *stack)
{
    begin(call);
    for (const struct call_argument *a = arguments; a->type; a++) {
        int first = call->n_tensors;
        read_argument(call, a, *stack++);
        if (a->type == 't')
            note_absent(call, (size_t)(a - arguments), first);
    }
    end(call);
}

static void free_one(char type, void *value)
{
    if (type == 't')
        torch.aoti_torch_delete_tensor_object(value);
    else if (type == 's')
        torch.torch_delete_string(value);
}

static void free_list(char type, void *list)
{
    size_t n = 0;
    uint64_t value = 0;
    torch.torch_list_size(list, &n);
    for (size_t i = 0; (type == 't' || type == 's') && i < n; i++)
        if (torch.torch_list_get_item(list, i, &value) == 0)
            free_one(type, (void *)(uintptr_t)value);
    torch.torch_delete_list(list);
}

static void free_value(const struct call_argument *a, void *value)
{
    if (a->is_list)
        free_list(a->type, value);
    else
        free_one(a->type, value);
}

static void free_box(uint64_t *box)
{
    if (torch.torch_delete_stable_ivalue)
        torch.torch_delete_stable_ivalue(box);
    else
        torch.free_value(box);
}

void call_free(const struct call_argument *arguments, uint64_t *stack)
{
    for (const struct call_argument *a = arguments; a->type; a++, stack++) {
        uint64_t *box = a->optional ? (uint64_t *)(uintptr_t)*stack : NULL;
        if (a->optional && !box)
            continue;
        free_value(a, (void *)(uintptr_t)(box ? *box : *stack));
        if (box)
            free_box(box);
    }
}
