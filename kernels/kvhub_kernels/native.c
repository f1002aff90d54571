/* Copies between addresses, called through ctypes (which releases the GIL) with arrays that numpy computed.
 *
 * Not a Python extension module in spite of how it is built: it includes no Python.h, so it builds wherever a C
 * compiler is.  The caller guarantees every address; nothing is checked here.
 *
 * Why not memcpy per page: pages of 16 to 256 KiB at random places lose to one memcpy over a large buffer by 40 %,
 * because glibc streams past the cache, and walks four 4 KiB pages side by side, only above several MiB.  The same
 * two steps per page, and a prefetch across the jump to the next page, win it back (tests/benchmarks/kernels.py).
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LINE 64
#define SMALL_PAGE 4096
#define WAYS 4
#define SCRATCH (256 * 1024)

/* `next_src` and `next_dst` are where the following page will be read and written, or NULL. */
typedef void (*page_fn)(char *dst, const char *src, int64_t bytes, const char *next_src, const char *next_dst);

static void page_plain(char *dst, const char *src, int64_t bytes, const char *next_src, const char *next_dst) {
    (void)next_src;
    (void)next_dst;
    memcpy(dst, src, (size_t)bytes);
}

#if defined(__x86_64__)
#include <immintrin.h>
#define PREFETCH(p) _mm_prefetch((const char *)(p), _MM_HINT_T0)
#define FENCE() _mm_sfence()

static inline void line_sse2(char *dst, const char *src) {
    for (int i = 0; i < LINE; i += 16)
        _mm_stream_si128((__m128i *)(dst + i), _mm_loadu_si128((const __m128i *)(src + i)));
}

__attribute__((target("avx512f"))) static inline void line_avx512(char *dst, const char *src) {
    _mm512_stream_si512((void *)dst, _mm512_loadu_si512(src));
}

/* While a page is written, the first two lines of what is read next are fetched, and one line of what is written next:
 * that one only for its address translation, which a streaming store would otherwise wait for every 4 KiB. */
#define STREAMING_PAGE(NAME, ATTRIBUTE, STORE_LINE)                                                            \
    ATTRIBUTE static void NAME(char *dst, const char *src, int64_t bytes, const char *next_src,                \
                               const char *next_dst) {                                                         \
        if ((uintptr_t)dst % LINE) {                                                                           \
            memcpy(dst, src, (size_t)bytes);                                                                   \
            return;                                                                                            \
        }                                                                                                      \
        const int64_t step = SMALL_PAGE * WAYS;                                                                \
        int64_t at = 0;                                                                                        \
        for (; at + step <= bytes; at += step) {                                                               \
            const int inside = at + 2 * step <= bytes;                                                         \
            const char *read = inside ? src + at + step : next_src;                                            \
            const char *write = inside ? dst + at + step : next_dst;                                           \
            for (int64_t k = 0; k < SMALL_PAGE; k += LINE) {                                                   \
                for (int w = 0; w < WAYS; w++)                                                                 \
                    STORE_LINE(dst + at + w * SMALL_PAGE + k, src + at + w * SMALL_PAGE + k);                  \
                const int64_t z = (k - SMALL_PAGE / 2) / LINE;                                                 \
                if (k >= SMALL_PAGE / 2 && z < 2 * WAYS) {                                                     \
                    if (read) PREFETCH(read + (z >> 1) * SMALL_PAGE + (z & 1) * LINE);                         \
                    if (write && !(z & 1)) PREFETCH(write + (z >> 1) * SMALL_PAGE);                            \
                }                                                                                              \
            }                                                                                                  \
        }                                                                                                      \
        for (; at + LINE <= bytes; at += LINE) STORE_LINE(dst + at, src + at);                                 \
        memcpy(dst + at, src + at, (size_t)(bytes - at));                                                      \
    }

STREAMING_PAGE(page_sse2, , line_sse2)
STREAMING_PAGE(page_avx512, __attribute__((target("avx512f"))), line_avx512)

static page_fn pick(int64_t stream) {
    if (!stream) return page_plain;
    return __builtin_cpu_supports("avx512f") ? page_avx512 : page_sse2;
}
#else
#define PREFETCH(p) __builtin_prefetch(p)
#define FENCE() atomic_thread_fence(memory_order_seq_cst)
static page_fn pick(int64_t stream) {
    (void)stream;
    return page_plain;
}
#endif

/* ---- work shared between threads: each takes the next stretch of jobs until none is left ---- */

typedef struct work {
    void (*run)(const struct work *, int64_t from, int64_t to, char *scratch);
    int64_t jobs, grain;
    const int64_t *src, *dst, *tokens, *planes;
    int64_t bytes, plane_count;
    page_fn page;
    int staged;
    atomic_llong *taken;
} work;

static void *worker(void *given) {
    const work *w = given;
    char *scratch = w->staged ? malloc(SCRATCH) : NULL; /* without it rows are written directly, only slower */
    for (;;) {
        int64_t from = atomic_fetch_add(w->taken, w->grain);
        if (from >= w->jobs) break;
        w->run(w, from, from + w->grain < w->jobs ? from + w->grain : w->jobs, scratch);
    }
    FENCE();
    free(scratch);
    return NULL;
}

static void share(work *w, int64_t threads) {
    atomic_llong taken = 0;
    pthread_t others[63];
    int64_t started = 0;
    w->taken = &taken;
    if (threads > 64) threads = 64;
    w->grain = threads > 1 ? w->jobs / (threads * 8) + 1 : w->jobs + 1;
    while (started < threads - 1 && !pthread_create(&others[started], NULL, worker, w)) started++;
    worker(w);
    while (started) pthread_join(others[--started], NULL);
}

/* ---- straight copies ---- */

static void run_copy(const work *w, int64_t from, int64_t to, char *scratch) {
    (void)scratch;
    for (int64_t i = from; i < to; i++) {
        const int more = i + 1 < to;
        w->page((char *)w->dst[i], (const char *)w->src[i], w->bytes, more ? (const char *)w->src[i + 1] : NULL,
                more ? (const char *)w->dst[i + 1] : NULL);
    }
}

void kvhub_copy(int64_t jobs, const int64_t *src, const int64_t *dst, int64_t bytes, int64_t stream, int64_t threads) {
    work w = {.run = run_copy, .jobs = jobs, .src = src, .dst = dst, .bytes = bytes, .page = pick(stream)};
    share(&w, threads);
}

/* ---- transposition: in registers, 16 bytes wide; log2(n) rounds of interleaving row i with row i + n/2 ---- */

typedef uint8_t lane8 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint16_t lane16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint32_t lane32 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint64_t lane64 __attribute__((vector_size(16), aligned(1), may_alias));

#if defined(__clang__) || __GNUC__ >= 12
#define ZIP(x, y, M, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define ZIP(x, y, M, ...) __builtin_shuffle(x, y, (M){__VA_ARGS__})
#endif
#define LOW64(x, y) ZIP(x, y, lane64, 0, 2)
#define HIGH64(x, y) ZIP(x, y, lane64, 1, 3)
#define LOW32(x, y) ZIP(x, y, lane32, 0, 4, 1, 5)
#define HIGH32(x, y) ZIP(x, y, lane32, 2, 6, 3, 7)
#define LOW16(x, y) ZIP(x, y, lane16, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH16(x, y) ZIP(x, y, lane16, 4, 12, 5, 13, 6, 14, 7, 15)
#define LOW8(x, y) ZIP(x, y, lane8, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH8(x, y) ZIP(x, y, lane8, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)

/* src[row * ss + column] to dst[column * ds + row], both in bytes but for the item.  Tiles of one cache line by one
 * cache line, so that each line of either side is used whole; the next tile's lines are fetched meanwhile, since no
 * hardware prefetcher follows rows that lie 4 KiB apart. */
#define FLIP(NAME, ITEM, LANE, N, LOW, HIGH)                                                                   \
    static inline void NAME##_lane(const char *src, int64_t ss, char *dst, int64_t ds) {                       \
        LANE a[N], b[N];                                                                                       \
        _Pragma("GCC unroll 16") for (int i = 0; i < N; i++) a[i] = *(const LANE *)(src + i * ss);             \
        _Pragma("GCC unroll 4") for (int round = 1; round < N; round *= 2) {                                   \
            _Pragma("GCC unroll 8") for (int i = 0; i < N / 2; i++) {                                          \
                b[2 * i] = LOW(a[i], a[i + N / 2]);                                                            \
                b[2 * i + 1] = HIGH(a[i], a[i + N / 2]);                                                       \
            }                                                                                                  \
            _Pragma("GCC unroll 16") for (int i = 0; i < N; i++) a[i] = b[i];                                  \
        }                                                                                                      \
        _Pragma("GCC unroll 16") for (int i = 0; i < N; i++) *(LANE *)(dst + i * ds) = a[i];                   \
    }                                                                                                          \
    static void NAME(const char *src, int64_t ss, char *dst, int64_t ds, int64_t rows, int64_t columns) {      \
        const int64_t size = sizeof(ITEM), tile = LINE / size;                                                 \
        const int64_t whole_rows = rows / N * N, whole_columns = columns / N * N;                              \
        for (int64_t r = 0; r < whole_rows; r += tile)                                                         \
            for (int64_t c = 0; c < whole_columns; c += tile) {                                                \
                const int64_t r_end = r + tile < whole_rows ? r + tile : whole_rows;                           \
                const int64_t c_end = c + tile < whole_columns ? c + tile : whole_columns;                     \
                const int64_t next_r = c_end < whole_columns ? r : r_end, next_c = c_end < whole_columns ? c_end : 0; \
                for (int64_t q = next_r; q < next_r + tile && q < whole_rows; q++)                             \
                    PREFETCH(src + q * ss + next_c * size);                                                    \
                for (int64_t cc = c; cc < c_end; cc += N)                                                      \
                    for (int64_t rr = r; rr < r_end; rr += N)                                                  \
                        NAME##_lane(src + rr * ss + cc * size, ss, dst + cc * ds + rr * size, ds);             \
            }                                                                                                  \
        for (int64_t r = 0; r < rows; r++)                                                                     \
            for (int64_t c = r < whole_rows ? whole_columns : 0; c < columns; c++)                             \
                memcpy(dst + c * ds + r * size, src + r * ss + c * size, sizeof(ITEM));                        \
    }

FLIP(flip8, uint8_t, lane8, 16, LOW8, HIGH8)
FLIP(flip16, uint16_t, lane16, 8, LOW16, HIGH16)
FLIP(flip32, uint32_t, lane32, 4, LOW32, HIGH32)
FLIP(flip64, uint64_t, lane64, 2, LOW64, HIGH64)

static void flip(const char *src, int64_t ss, char *dst, int64_t ds, int64_t rows, int64_t columns, int64_t item) {
    if (item == 1) flip8(src, ss, dst, ds, rows, columns);
    if (item == 2) flip16(src, ss, dst, ds, rows, columns);
    if (item == 4) flip32(src, ss, dst, ds, rows, columns);
    if (item == 8) flip64(src, ss, dst, ds, rows, columns);
}

/* Through a scratch that stays in the L2 cache: its rows lie a line apart from powers of two, so they do not evict
 * each other, and they leave for `dst` as whole streamed lines. */
static void flip_staged(const work *w, const char *src, int64_t ss, char *dst, int64_t ds, int64_t rows,
                        int64_t columns, int64_t item, char *scratch) {
    const int64_t row = rows * item, pitch = (row + LINE - 1) / LINE * LINE + LINE;
    const int64_t strip = SCRATCH / pitch / (LINE / item) * (LINE / item);
    if (!scratch || !strip || row < LINE || w->page == page_plain) {
        flip(src, ss, dst, ds, rows, columns, item);
        return;
    }
    for (int64_t c = 0; c < columns; c += strip) {
        const int64_t count = c + strip < columns ? strip : columns - c;
        flip(src + c * item, ss, scratch, pitch, rows, count, item);
        for (int64_t k = 0; k < count; k++) w->page(dst + (c + k) * ds, scratch + k * pitch, row, NULL, NULL);
    }
}

/* ---- copies of a token range, from any strides to any strides ---- */

enum { HEADS, DIMS, ITEM, SRC_H, SRC_T, SRC_D, DST_H, DST_T, DST_D, PLANE_FIELDS };

static void rows_of(const work *w, char *dst, int64_t dt, const char *src, int64_t st, int64_t rows, int64_t bytes) {
    if (st == bytes && dt == bytes) {
        bytes *= rows;
        rows = 1;
    }
    for (int64_t i = 0; i < rows; i++) w->page(dst + i * dt, src + i * st, bytes, NULL, NULL);
}

static void run_move(const work *w, int64_t from, int64_t to, char *scratch) {
    for (int64_t i = from; i < to; i++) {
        const int64_t *p = w->planes + i % w->plane_count * PLANE_FIELDS;
        const int64_t tokens = w->tokens[i / w->plane_count], dims = p[DIMS], item = p[ITEM];
        for (int64_t h = 0; h < p[HEADS]; h++) {
            const char *src = (const char *)w->src[i] + h * p[SRC_H];
            char *dst = (char *)w->dst[i] + h * p[DST_H];
            if (p[SRC_D] == item && p[DST_D] == item)
                rows_of(w, dst, p[DST_T], src, p[SRC_T], tokens, dims * item);
            else if (p[SRC_T] == item && p[DST_T] == item)
                rows_of(w, dst, p[DST_D], src, p[SRC_D], dims, tokens * item);
            else if (p[SRC_T] == item && p[DST_D] == item)
                flip_staged(w, src, p[SRC_D], dst, p[DST_T], dims, tokens, item, scratch);
            else if (p[SRC_D] == item && p[DST_T] == item)
                flip_staged(w, src, p[SRC_T], dst, p[DST_D], tokens, dims, item, scratch);
            else
                for (int64_t t = 0; t < tokens; t++)
                    for (int64_t d = 0; d < dims; d++)
                        memcpy(dst + t * p[DST_T] + d * p[DST_D], src + t * p[SRC_T] + d * p[SRC_D], (size_t)item);
        }
    }
}

/* Job i moves tokens[i / plane_count] tokens of plane i % plane_count; addresses are those of the first token. */
void kvhub_move(int64_t jobs, const int64_t *src, const int64_t *dst, const int64_t *tokens, int64_t plane_count,
                const int64_t *planes, int64_t stream, int64_t threads) {
    work w = {.run = run_move, .jobs = jobs, .src = src, .dst = dst, .tokens = tokens, .planes = planes,
              .plane_count = plane_count, .page = pick(stream), .staged = 1};
    share(&w, threads);
}
