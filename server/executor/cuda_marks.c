#include "executor/cuda_marks.h"

#include <unistd.h>

#include "base/clock.h"

// How often the driver is asked whether the stream has stopped, where no mark passes. To ask takes
// longer than to look at a mark, and those who launch would wait for it.
enum { ASK_NS = 20000 };

bool cuda_marks_init(struct cuda_marks *m, const struct cuda_driver *cu, void *stream, bool writes,
                     struct opd_err *err)
{
    void *host = NULL;
    m->cu = cu;
    m->stream = stream;
    if (!CU_OK(cuMemHostAlloc(&host, sizeof(*m->passed), DRV_HOST_PORTABLE | DRV_HOST_DEVICE_MAP)))
        return false;
    m->own_passed = host;
    m->passed = host;
    atomic_init(m->passed, 0);
    if (cu->cuStreamWriteValue64 && writes)
        return CU_OK(cuMemHostGetDevicePointer(&m->passed_addr, host, 0));
    for (int i = 0; i < CUDA_MARKS_EVENTS; i++)
        if (!CU_OK(cuEventCreate(&m->events[i].event, DRV_EVENT_DISABLE_TIMING)))
            return false;
    return true;
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
        if (!CU_OK(cuEventSynchronize(m->events[m->first_event].event)))
            return false;
        pass_first_event(m);
    }
    struct cuda_mark_event *e = &m->events[(m->first_event + m->n_events) % CUDA_MARKS_EVENTS];
    if (!CU_OK(cuEventRecord(e->event, m->stream)))
        return false;
    e->mark = mark;
    m->n_events++;
    return true;
}

bool cuda_marks_add(struct cuda_marks *m, uint64_t mark, struct opd_err *err)
{
    const struct cuda_driver *cu = m->cu;
    // A write comes after all earlier work, and is visible so.
    bool ok = m->passed_addr ? CU_OK(cuStreamWriteValue64(m->stream, m->passed_addr, mark, 0))
                             : add_event(m, mark, err);
    if (ok)
        m->last = mark;
    return ok;
}

bool cuda_marks_poll(struct cuda_marks *m, uint64_t *out_mark, struct opd_err *err)
{
    const struct cuda_driver *cu = m->cu;
    while (m->n_events > 0 && cu->cuEventQuery(m->events[m->first_event].event) == DRV_SUCCESS)
        pass_first_event(m);
    *out_mark = atomic_load_explicit(m->passed, memory_order_acquire);
    uint64_t now = clock_ns();
    if (*out_mark == m->last || *out_mark != m->seen)
        m->asked_at = now;
    m->seen = *out_mark;
    if (now - m->asked_at < ASK_NS)
        return true;
    m->asked_at = now;
    int result = cu->cuStreamQuery(m->stream);
    if (result == DRV_SUCCESS || result == DRV_ERROR_NOT_READY)
        return true;
    *out_mark = atomic_load_explicit(m->passed, memory_order_acquire); // of a stream that stopped
    cuda_driver_check(cu, result, "the device", err);
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
    return (m->stamps[place] || CU_OK(cuEventCreate(&m->stamps[place], DRV_EVENT_DEFAULT))) &&
           CU_OK(cuEventRecord(m->stamps[place], m->stream));
}

bool cuda_marks_elapsed(struct cuda_marks *m, unsigned from, unsigned to, uint64_t *out_ns,
                        struct opd_err *err)
{
    const struct cuda_driver *cu = m->cu;
    float ms = 0;
    // Passed, but the driver may not have looked since.
    bool ok = CU_OK(cuEventSynchronize(m->stamps[to])) &&
              CU_OK(cuEventElapsedTime(&ms, m->stamps[from], m->stamps[to]));
    *out_ns = (uint64_t)((double)ms * 1e6);
    return ok;
}
