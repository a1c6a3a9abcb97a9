
// Fourth of the texts: from a kernel's function to the image's export. One line at the end of the
// translation unit, OPD_CPU_EXPORT(kernel<types>), instantiates all of this.

template <unsigned... I> struct opd_cpu_places {
};
template <unsigned N, unsigned... I> struct opd_cpu_count : opd_cpu_count<N - 1, N - 1, I...> {
};
template <unsigned... I> struct opd_cpu_count<0, I...> {
    typedef opd_cpu_places<I...> places;
};

// Offset and size of each parameter, packed as a C struct would be.
template <unsigned N> struct opd_cpu_layout {
    opd_cpu_param param[N + 1];
};

template <class... A> constexpr opd_cpu_layout<sizeof...(A)> opd_cpu_lay_out()
{
    const unsigned size[] = { (unsigned)sizeof(A)..., 0 }, align[] = { (unsigned)alignof(A)..., 1 };
    opd_cpu_layout<sizeof...(A)> layout = {};
    unsigned at = 0;
    for (unsigned i = 0; i < sizeof...(A); i++) {
        at = (at + align[i] - 1) / align[i] * align[i];
        layout.param[i].offset = at;
        layout.param[i].size = size[i];
        at += size[i];
    }
    return layout;
}

// Kernels of opd's own take large structs as `const T &`: copied, they take longer than a block.
template <class T> struct opd_cpu_bare {
    typedef T type;
};
template <class T> struct opd_cpu_bare<const T &> {
    typedef T type;
};

template <class T>
OPD_CPU_INLINE const typename opd_cpu_bare<T>::type &opd_cpu_arg(const opd_cpu_job *job,
                                                                 unsigned offset)
{
    return *reinterpret_cast<const typename opd_cpu_bare<T>::type *>(job->args + offset);
}

constexpr unsigned opd_cpu_many = 1u << 21; // blocks: times OPD_CPU_MAX_BLOCK is 2^31

#ifdef OPD_CPU_RACE
#define OPD_CPU_FRAME(attribute) __attribute__((attribute, no_sanitize("thread")))
#define OPD_CPU_WALK __attribute__((no_sanitize("thread"))) // the kernel stays apart from it
#else
#define OPD_CPU_FRAME(attribute) __attribute__((attribute))
#define OPD_CPU_WALK __attribute__((flatten))
#endif

// OPD_CPU_PLAIN_LOOP: nothing but the index of its CUDA_KERNEL_LOOP tells the kernel's threads
// apart (host_loop.h). So there is a thread for each index. One that lies beyond all of them runs
// first, and leaves behind how many there are.
#ifdef OPD_CPU_PLAIN_LOOP
constexpr bool opd_cpu_plain_loop = true;
#define OPD_CPU_KERNEL_LOOP(i, n) for (auto i : opd_cpu_turn<decltype((n) + 0)>(n))
#else
constexpr bool opd_cpu_plain_loop = false;
#endif
static thread_local long long opd_cpu_turn_index, opd_cpu_turns;
constexpr long long opd_cpu_beyond = 0x7fffffffffffffff;

template <class T> struct opd_cpu_turn {
    struct iterator {
        long long at;
        OPD_CPU_INLINE T operator*() const
        {
            return (T)at;
        }
        OPD_CPU_INLINE void operator++()
        {
            at = opd_cpu_beyond;
        }
        OPD_CPU_INLINE bool operator!=(const iterator &end) const
        {
            return at < end.at;
        }
    };
    long long n;
    OPD_CPU_INLINE explicit opd_cpu_turn(T n) : n((long long)n)
    {
        if (opd_cpu_turn_index == opd_cpu_beyond)
            opd_cpu_turns = this->n;
    }
    OPD_CPU_INLINE iterator begin() const
    {
        return { opd_cpu_turn_index };
    }
    OPD_CPU_INLINE iterator end() const
    {
        return { n };
    }
};

// Which of the threads, or indices, from `first` to `end` comes at that place. opd_cpu_job.plain 2:
// the last one first.
#ifdef OPD_CPU_BACKWARDS
static thread_local bool opd_cpu_backwards;
#define OPD_CPU_PLACE(at, first, end) (opd_cpu_backwards ? (first) + (end)-1 - (at) : (at))
#define OPD_CPU_SET_ORDER(job) opd_cpu_backwards = (job)->plain == 2
#else
#define OPD_CPU_PLACE(at, first, end) (at)
#define OPD_CPU_SET_ORDER(job)
#endif

template <auto Kernel> struct opd_cpu_launch;

template <class... A, void (*Kernel)(A...)> struct opd_cpu_launch<Kernel> {
    static constexpr opd_cpu_layout<sizeof...(A)> layout = opd_cpu_lay_out<A...>();

    // The threads from `first` on, row by row, until one of them waits: that one leaves the rest to
    // others.
    OPD_CPU_WALK static void walk(unsigned first, A... a)
    {
        const unsigned nx = blockDim.x, ny = blockDim.y, rows = ny * blockDim.z;
        unsigned x = first % nx;
        // Known not to wrap, `blockIdx.x * blockDim.x + threadIdx.x` is an address to vectorise by.
        if (nx > OPD_CPU_MAX_BLOCK || blockIdx.x >= opd_cpu_many)
            __builtin_unreachable();
        opd_cpu_bound = nx;
        for (unsigned row = first / nx; row < rows; row++, x = 0) {
            threadIdx.y = row % ny;
            threadIdx.z = row / ny;
            OPD_CPU_VECTORIZE
            for (unsigned at = x; at < opd_cpu_bound; at++) {
                threadIdx.x = at;
                OPD_CPU_RACE_CALL(race_enter(opd_cpu_self, row * nx + at));
                Kernel(a...);
                OPD_CPU_RACE_CALL(race_exit(opd_cpu_self));
            }
            if (opd_cpu_bound != nx)
                return;
        }
    }

    OPD_CPU_FRAME(cold) static void walk_plainly(unsigned first, A... a)
    {
        const unsigned nx = blockDim.x, ny = blockDim.y, n = nx * ny * blockDim.z;
        opd_cpu_bound = n;
        for (unsigned at = first; at < opd_cpu_bound; at++) {
            const unsigned thread = OPD_CPU_PLACE(at, first, n);
            threadIdx.x = thread % nx;
            threadIdx.y = thread / nx % ny;
            threadIdx.z = thread / nx / ny;
            OPD_CPU_RACE_CALL(race_enter(opd_cpu_self, at));
            Kernel(a...);
            OPD_CPU_RACE_CALL(race_exit(opd_cpu_self));
        }
    }

    // A block's share of the indices, which are divided among the blocks of a row.
    OPD_CPU_INLINE static void take_turns(A... a)
    {
        opd_cpu_turn_index = opd_cpu_beyond;
        opd_cpu_turns = 0;
        Kernel(a...);
        const long long n = opd_cpu_turns > 0 ? opd_cpu_turns : 0;
        const long long share = (n + gridDim.x - 1) / gridDim.x, first = share * blockIdx.x;
        const long long begin = first < n ? first : n, end = n - begin < share ? n : begin + share;
        OPD_CPU_VECTORIZE
        for (long long at = begin; at < end; at++) {
            opd_cpu_turn_index = OPD_CPU_PLACE(at, begin, end);
            Kernel(a...);
        }
        opd_cpu_bound = 1;
    }

    OPD_CPU_WALK static void walk_turns(unsigned, A... a)
    {
        take_turns(a...);
    }

    OPD_CPU_FRAME(cold) static void walk_turns_plainly(unsigned, A... a)
    {
        take_turns(a...);
    }

    template <unsigned... I>
    OPD_CPU_INLINE static void call(void (*walk)(unsigned, A...), const opd_cpu_job *job,
                                    unsigned first, opd_cpu_places<I...>)
    {
        walk(first, opd_cpu_arg<A>(job, layout.param[I].offset)...);
    }

    OPD_CPU_FRAME(noinline) static void start(const opd_cpu_job *job, unsigned first)
    {
        const typename opd_cpu_count<sizeof...(A)>::places places;
        OPD_CPU_SET_ORDER(job);
        if constexpr (opd_cpu_plain_loop)
            if (__builtin_expect(!job->plain, 1))
                call(walk_turns, job, first, places);
            else
                call(walk_turns_plainly, job, first, places);
        else if (__builtin_expect(blockIdx.x < opd_cpu_many && !job->plain, 1))
            call(walk, job, first, places);
        else
            call(walk_plainly, job, first, places);
    }

    OPD_CPU_FRAME(noinline)
    static void run(opd_cpu_worker *w, const opd_cpu_job *job, void *shared,
                    unsigned long long begin, unsigned long long end)
    {
        opd_cpu_self = w;
        opd_cpu_arena = shared;
        blockDim = { job->block[0], job->block[1], job->block[2] };
        gridDim = { job->grid[0], job->grid[1], job->grid[2] };
        const unsigned long long gx = gridDim.x, gy = gridDim.y;
        for (unsigned long long b = begin; b < end; b++) {
            blockIdx = { (unsigned)(b % gx), (unsigned)(b / gx % gy), (unsigned)(b / gx / gy) };
            OPD_CPU_RACE_CALL(race_block(w));
            start(job, 0);
            if (opd_cpu_bound == 0)
                opd_cpu_rt->join(w);
        }
    }
};

static void opd_cpu_init(const opd_cpu_runtime *rt)
{
    opd_cpu_rt = rt;
}

#define OPD_CPU_EXPORT(symbol, ...)                                                                \
    extern "C" __attribute__((visibility("default"))) const opd_cpu_kernel symbol = {              \
        OPD_CPU_ABI,                                                                               \
        sizeof opd_cpu_launch<(__VA_ARGS__)>::layout.param / sizeof(opd_cpu_param) - 1,            \
        opd_cpu_launch<(__VA_ARGS__)>::layout.param,                                               \
        #__VA_ARGS__,                                                                              \
        opd_cpu_init,                                                                              \
        opd_cpu_launch<(__VA_ARGS__)>::run,                                                        \
        opd_cpu_launch<(__VA_ARGS__)>::start,                                                      \
    };
