// A whole client: the gelu of seven numbers and its gradient, computed by the daemon.
//
//     cc example.c $(pkg-config --cflags --libs opd) -o example && ./example [SOCKET]

#include <stdio.h>

#include <opd.h>

enum { COUNT = 7 };

static bool make_input(struct opd_client *opd, struct opd_tensor *tensor, const float *values,
                       struct opd_error *err)
{
    *tensor = (struct opd_tensor){ .dtype = "float32", .rank = 1, .shape = { COUNT } };
    return opd_tensor_new(opd, tensor, err) &&
           opd_tensor_write(opd, tensor->id, 0, values, COUNT * sizeof *values, err);
}

static bool run(struct opd_client *opd, const float *x, float *y, float *grad,
                struct opd_error *err)
{
    static const float ones[COUNT] = { 1, 1, 1, 1, 1, 1, 1 };
    struct opd_tensor input, grad_output;
    if (!make_input(opd, &input, x, err) || !make_input(opd, &grad_output, ones, err))
        return false;

    // The ids of what does not exist yet are ours to choose.
    int64_t output = opd_new_id(opd), context = opd_new_id(opd), grad_input = opd_new_id(opd);
    struct opd_attr attrs[] = { opd_str("approximate", "tanh") };
    struct opd_forward_params forward = {
        .op = "gelu",
        .inputs = &input.id,
        .input_count = 1,
        .attrs = attrs,
        .attr_count = 1,
        .outputs = &output,
        .output_count = 1,
        .context = context,
    };
    struct opd_backward_params backward = {
        .context = context,
        .grads = &grad_output.id,
        .grad_count = 1,
        .inputs = &grad_input,
        .input_count = 1,
    };
    return opd_forward(opd, &forward, err) && opd_backward(opd, &backward, err) &&
           opd_tensor_read(opd, output, 0, y, COUNT * sizeof *y, err) &&
           opd_tensor_read(opd, grad_input, 0, grad, COUNT * sizeof *grad, err);
}

int main(int argc, char **argv)
{
    static const float x[COUNT] = { -3, -2, -1, 0, 1, 2, 3 };
    float y[COUNT], grad[COUNT];
    struct opd_error err = { 0 };
    struct opd_client *opd = opd_connect(argc > 1 ? argv[1] : NULL, &err);
    bool good = opd && run(opd, x, y, grad, &err);
    if (!good)
        fprintf(stderr, "%s: %s\n%s", err.name, err.message, err.log ? err.log : "");
    for (int i = 0; good && i < COUNT; i++)
        printf("gelu(%4.1f) = %9.6f   gradient %9.6f\n", x[i], y[i], grad[i]);
    opd_error_clear(&err);
    opd_close(opd);
    return good ? 0 : 1;
}
