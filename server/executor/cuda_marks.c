#include "executor/cuda_marks.h"

#include <unistd.h>

bool cuda_marks_init(struct cuda_marks *m, const struct cuda_driver *cu, void *stream, bool writes,
                     struct opd_err *err)
{
    void *host = NULL;
    m->cu = cu;
    m->stream = stream;
    CU_TRY(cuMemHostAlloc(&host, sizeof(*m->passed), DRV_HOST_PORTABLE | DRV_HOST_DEVICE_MAP));
    m->own_passed = host;
    m->passed = host;
    atomic_init(m->passed, 0);
    if (cu->cuStreamWriteValue64 && writes) {
        CU_TRY(cuMemHostGetDevicePointer(&m->passed_addr, host, 0));
        return true;
    }
    for (int i = 0; i < CUDA_MARKS_EVENTS; i++)
        CU_TRY(cuEventCreate(&m->events[i].event, DRV_EVENT_DISABLE_TIMING));
    return true;
fail:
    return false;
}

void cuda_marks_finish(struct cuda_marks *m)
{
    const struct cuda_driver *cu = m->cu;
    for (int i = 0; i < CUDA_MARKS_EVENTS; i++)
        if (m->events[i].event)
            cu->cuEventDestroy(m->events[i].event);
    for (int i = 0; i < BACKEND_STAMPS; i++)
        if (m->stamps[i])
            cu->cuEventDestroy(m->stamps[i]);
    if (m->passed && (void *)m->passed != m->own_passed)
        cu->cuMemHostUnregister((void *)m->passed);
    if (m->own_passed)
        cu->cuMemFreeHost(m->own_passed);
    *m = (struct cuda_marks){ 0 };
}

static void pass_first_event(struct cuda_marks *m)
{
    atomic_store_explicit(m->passed, m->events[m->first_event].mark, memory_order_release);
    m->first_event = (m->first_event + 1) % CUDA_MARKS_EVENTS;
    m->n_events--;
}

static bool add_event(struct cuda_marks *m, uint64_t mark, struct opd_err *err)
{
    const struct cuda_driver *cu = m->cu;
    if (m->n_events == CUDA_MARKS_EVENTS) {
        CU_TRY(cuEventSynchronize(m->events[m->first_event].event));
        pass_first_event(m);
    }
    struct cuda_mark_event *e = &m->events[(m->first_event + m->n_events) % CUDA_MARKS_EVENTS];
    CU_TRY(cuEventRecord(e->event, m->stream));
    e->mark = mark;
    m->n_events++;
    return true;
fail:
    return false;
}

bool cuda_marks_add(struct cuda_marks *m, uint64_t mark, struct opd_err *err)
{
    const struct cuda_driver *cu = m->cu;
    if (!m->passed_addr) {
        if (!add_event(m, mark, err))
            return false;
    } else {
        CU_TRY(cuStreamWriteValue64(m->stream, m->passed_addr, mark,
                                    0)); // after all earlier work, and visible so
    }
    m->last = mark;
    return true;
fail:
    return false;
}

bool cuda_marks_poll(struct cuda_marks *m, uint64_t *out_mark, struct opd_err *err)
{
    const struct cuda_driver *cu = m->cu;
    while (m->n_events > 0 && cu->cuEventQuery(m->events[m->first_event].event) == DRV_SUCCESS)
        pass_first_event(m);
    *out_mark = atomic_load_explicit(m->passed, memory_order_acquire);
    if (*out_mark == m->last)
        return true;
    int result = cu->cuStreamQuery(m->stream);
    if (result == DRV_SUCCESS || result == DRV_ERROR_NOT_READY)
        return true;
    *out_mark = atomic_load_explicit(m->passed, memory_order_acquire); // of a stream that stopped
    cuda_driver_err(cu, result, "the device", err);
    err->code = OPD_E_kernel_fault; // whatever it is called, the stream has stopped
    return false;
}

bool cuda_marks_share(struct cuda_marks *m, _Atomic uint64_t *passed)
{
    const struct cuda_driver *cu = m->cu;
    drv_addr addr = 0;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)passed % page;
    void *host = (uint8_t *)(void *)passed - at;
    if (!m->passed_addr ||
        cu->cuMemHostRegister(host, page, DRV_HOST_PORTABLE | DRV_HOST_DEVICE_MAP) != DRV_SUCCESS)
        return false;
    if (cu->cuMemHostGetDevicePointer(&addr, host, 0) != DRV_SUCCESS) {
        cu->cuMemHostUnregister(host);
        return false;
    }
    m->passed = passed;
    m->passed_addr = addr + at;
    return true;
}

bool cuda_marks_stamp(struct cuda_marks *m, unsigned place, struct opd_err *err)
{
    const struct cuda_driver *cu = m->cu;
    if (!m->stamps[place])
        CU_TRY(cuEventCreate(&m->stamps[place], DRV_EVENT_DEFAULT));
    CU_TRY(cuEventRecord(m->stamps[place], m->stream));
    return true;
fail:
    return false;
}

bool cuda_marks_elapsed(struct cuda_marks *m, unsigned from, unsigned to, uint64_t *out_ns,
                        struct opd_err *err)
{
    const struct cuda_driver *cu = m->cu;
    float ms = 0;
    // Passed, but the driver may not have looked since.
    CU_TRY(cuEventSynchronize(m->stamps[to]));
    CU_TRY(cuEventElapsedTime(&ms, m->stamps[from], m->stamps[to]));
    *out_ns = (uint64_t)((double)ms * 1e6);
    return true;
fail:
    return false;
}
