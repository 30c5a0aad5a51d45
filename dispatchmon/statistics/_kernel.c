/* The statistics of a tensor in CPU memory, in one pass: a data pointer and a layout in, ten numbers out.
 *
 * No torch headers, and no state but the id of the process it was loaded in, so any number of monitors and threads may
 * measure at once; limited API, so one build serves every CPython from 3.11 on. The package works without this file
 * (table.py falls back on torch).
 *
 * How a measurement runs. The elements, in the order of the layout, are cut into blocks of BLOCK. A block that is not
 * dense is gathered, and one that is not float32 or float64 is converted, into a buffer that fits the first-level
 * cache; then one of three kernels measures it, and its total is merged into the running one. `fast_f32` and
 * `fast_f64` assume ordinary numbers and say when they met others (NaN, Inf, out of range); `careful` then masks them
 * out, in double. Blocks form chunks whose size depends on the number of elements alone, and chunks are merged in
 * order, so the result does not depend on the number of threads.
 *
 * Build: cc -O3 -fno-trapping-math -fno-math-errno -shared -fPIC -DPy_LIMITED_API=0x030b0000 -I<include> \
 *           _kernel.c -o _kernel.abi3.so -lm -ldl -pthread
 * -fno-trapping-math lets comparisons and square roots vectorize; -ffast-math would break the tests for NaN.
 * Checked for memory errors and undefined behaviour by tests/judges/sanitize_kernel.py. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* RTLD_DEFAULT */
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__unix__) || defined(__APPLE__)
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>
#define HAVE_THREADS 1
#else
typedef int pid_t;
static int getpid(void) { return 0; }
#endif
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

/* One compiled copy per instruction set, chosen when the module loads. Needs ifunc, which only glibc has; clang knows
 * these names for target_clones from version 19 on. Elsewhere the compiler's default instruction set is used. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(DISPATCHMON_NO_CLONES) && \
    ((defined(__clang__) && __clang_major__ >= 19) || (!defined(__clang__) && defined(__GNUC__) && __GNUC__ >= 12))
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif

enum { BLOCK = 2048, MIN_CHUNK = 32768, CHUNKS = 256 }; /* elements, elements, at most so many */
enum { LARGE = 1 << 17 };                               /* elements from which threads are used and the GIL released */
enum { OWN_THREADS = 1 << 20, MAX_THREADS = 64 };       /* elements worth threads of our own; at most so many */
enum { DIMS = 8, WIDEST = 16 };                         /* outer dimensions; bytes of the widest element */
#define LANES_32 32
#define LANES_64 16
/* Halve an array of lanes until lane 0 holds the whole. Written out, so that every width is a constant. */
#define FOLD_8(STEP) STEP(4) STEP(2) STEP(1)
#define FOLD_16(STEP) STEP(8) FOLD_8(STEP)
#define FOLD_32(STEP) STEP(16) FOLD_16(STEP)

/* --- Totals ----------------------------------------------------------------------------------------------------- */

typedef struct { double count, min, max, mean, m2, nan, inf, posinf, zero; } Total; /* m2: centred sum of squares */
static const Total NOTHING = {0, INFINITY, -INFINITY, 0, 0, 0, 0, 0, 0};

/* Chan, Golub, LeVeque: Updating formulae and a pairwise algorithm for computing sample variances (1979), eq. 2.1. */
static void merge(Total *t, const Total *b) {
  t->nan += b->nan, t->inf += b->inf, t->posinf += b->posinf, t->zero += b->zero;
  if (b->count == 0) return;
  double all = t->count + b->count, d = b->mean - t->mean, share = b->count / all;
  t->mean += d * share;
  t->m2 += b->m2 + d * d * t->count * share;
  t->count = all;
  if (b->min < t->min) t->min = b->min;
  if (b->max > t->max) t->max = b->max;
}

/* --- Kernels: a dense block of n elements, n a multiple of the lanes -------------------------------------------- */

/* Sums are taken around `near`, the mean of the block's first elements: plain sums of squares lose a small spread
 * around a large mean. Where those elements were no sample of the block (a row, then zeros), the sums are far larger than
 * what is left of them and 1e-4 of it would be wrong: a second pass takes them around the mean that the first has found.
 * NaN, Inf and overflow leave the sum of squares not finite; above LEAST no square that matters is lost below. */
#define ADD_HALF(W) for (int j = 0; j < W; j++) s[j] += s[j + W];
#define MERGE_HALF(W)                                      \
  for (int j = 0; j < W; j++) {                            \
    lo[j] = lo[j + W] < lo[j] ? lo[j + W] : lo[j];         \
    hi[j] = hi[j + W] > hi[j] ? hi[j + W] : hi[j];         \
    s[j] += s[j + W], c[j] += c[j + W], z[j] += z[j + W];  \
  }
enum { NOT_ORDINARY, ORDINARY, BAD_GUESS };
#define FAST(NAME, REAL, COUNTER, LANES, FOLD, LEAST)                                          \
  CLONES static int NAME##_around(const char *__restrict p, int n, REAL near, Total *__restrict b) {\
    REAL lo[LANES], hi[LANES], s[LANES], c[LANES];                                             \
    COUNTER z[LANES];                                                                          \
    for (int j = 0; j < LANES; j++) {                                                          \
      lo[j] = (REAL)INFINITY, hi[j] = -(REAL)INFINITY;                                         \
      s[j] = c[j] = 0, z[j] = 0;                                                               \
    }                                                                                          \
    for (int k = 0; k < n; k += LANES, p += sizeof s)                                          \
      for (int j = 0; j < LANES; j++) {                                                        \
        REAL x, d;                                                                             \
        memcpy(&x, p + j * sizeof x, sizeof x);                                                \
        d = x - near;                                                                          \
        lo[j] = x < lo[j] ? x : lo[j];                                                         \
        hi[j] = x > hi[j] ? x : hi[j];                                                         \
        s[j] += d;                                                                             \
        c[j] += d * d;                                                                         \
        z[j] += x == 0;                                                                        \
      }                                                                                        \
    FOLD(MERGE_HALF)                                                                           \
    double peak = fmax(fabs((double)lo[0]), fabs((double)hi[0])), shift = (double)s[0] / n;    \
    if (!(c[0] < INFINITY) || (peak < LEAST && peak > 0)) return NOT_ORDINARY;                 \
    *b = (Total){n, lo[0], hi[0], near + shift, fmax(0, c[0] - shift * s[0]), 0, 0, 0, z[0]};  \
    return b->m2 < c[0] / 2 ? BAD_GUESS : ORDINARY;                                            \
  }                                                                                            \
  static int NAME(const char *__restrict p, int n, Total *__restrict b) {                      \
    REAL s[LANES];                                                                             \
    memcpy(s, p, sizeof s);                                                                    \
    FOLD(ADD_HALF)                                                                             \
    int found = NAME##_around(p, n, s[0] / LANES, b);                                          \
    return found == BAD_GUESS ? NAME##_around(p, n, (REAL)b->mean, b) : found;                 \
  }
FAST(fast_f32, float, int32_t, LANES_32, FOLD_32, 1e-10)
FAST(fast_f64, double, int64_t, LANES_64, FOLD_16, 1e-130)

static inline uint64_t bits_of(double x) { uint64_t u; memcpy(&u, &x, 8); return u; }
static inline double double_of(uint64_t u) { double x; memcpy(&x, &u, 8); return x; }
static inline float float_of(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
static inline uint32_t bits_of_float(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }

/* Any numbers. Squares may still overflow: `measure_all` notices by the largest magnitude and does it again, scaled. */
CLONES static void careful(const double *__restrict p, int n, Total *__restrict b) {
  const int64_t infinite = bits_of(INFINITY), sign = INT64_MIN;
  double lo[LANES_64], hi[LANES_64], s[LANES_64], c[LANES_64], near = 0;
  int64_t nan[LANES_64], inf[LANES_64], pos[LANES_64], z[LANES_64];
  for (int k = 0; k < n; k++)
    if (isfinite(p[k])) { near = p[k]; break; }
  for (int j = 0; j < LANES_64; j++) {
    lo[j] = INFINITY, hi[j] = -INFINITY, s[j] = c[j] = 0;
    nan[j] = inf[j] = pos[j] = z[j] = 0;
  }
  for (int k = 0; k < n; k += LANES_64)
    for (int j = 0; j < LANES_64; j++) {
      double x = p[k + j];
      int64_t u = (int64_t)bits_of(x), size = u & ~sign;
      double low = size < infinite ? x : INFINITY, high = size < infinite ? x : -INFINITY;
      double d = size < infinite ? x - near : 0;
      lo[j] = low < lo[j] ? low : lo[j];
      hi[j] = high > hi[j] ? high : hi[j];
      s[j] += d;
      c[j] += d * d;
      nan[j] += size > infinite;
      inf[j] += size == infinite;
      pos[j] += u == infinite;
      z[j] += size == 0;
    }
#define COUNT_HALF(W) \
  for (int j = 0; j < W; j++) nan[j] += nan[j + W], inf[j] += inf[j + W], pos[j] += pos[j + W];
  FOLD_16(MERGE_HALF)
  FOLD_16(COUNT_HALF)
  double count = (double)(n - nan[0] - inf[0]), shift = count ? s[0] / count : 0;
  *b = (Total){count, lo[0], hi[0], near + shift, fmax(0, c[0] - shift * s[0]), nan[0], inf[0], pos[0], z[0]};
}

/* Pads to whole lanes with NaN, which `careful` skips, and takes the padding out of the count of NaN again. */
static void measure_carefully(double *buffer, int n, Total *t) {
  Total b;
  int padded = (n + LANES_64 - 1) / LANES_64 * LANES_64;
  for (int i = n; i < padded; i++) buffer[i] = NAN;
  careful(buffer, padded, &b);
  b.nan -= padded - n;
  merge(t, &b);
}

/* --- Conversion of a dense block to float or double ------------------------------------------------------------- */

typedef void Convert(const char *__restrict p, int n, void *__restrict out, double scale);
#define CONVERT(NAME, FROM, TO, VALUE)                                                          \
  CLONES static void NAME(const char *__restrict p, int n, void *__restrict out, double scale) { \
    TO *y = out;                                                                               \
    (void)scale;                                                                               \
    for (int i = 0; i < n; i++) {                                                              \
      FROM x;                                                                                  \
      memcpy(&x, p + i * sizeof x, sizeof x);                                                  \
      y[i] = VALUE;                                                                            \
    }                                                                                          \
  }

/* A small float by its bits. Subnormals come from a subtraction of normal floats, because multiplying a subnormal
 * costs a hundred cycles on some processors; at `top` and above are NaN and, where the format has it, Inf. */
static inline float small_float(uint32_t x, int width, int mantissa, int bias, uint32_t top) {
  uint32_t size = x & ((1u << (width - 1)) - 1), shifted = size << (23 - mantissa), one = (uint32_t)(128 - bias) << 23;
  uint32_t normal = shifted + one - (1u << 23), subnormal = bits_of_float(float_of(shifted + one) - float_of(one));
  uint32_t value = size >> mantissa ? normal : subnormal;
  return float_of((size >= top ? shifted | 0x7f800000u : value) | (x >> (width - 1)) << 31);
}
#ifdef __aarch64__
CONVERT(from_f16, __fp16, float, x)
#else
CONVERT(from_f16_bits, uint16_t, float, small_float(x, 16, 10, 15, 0x7c00))
#if defined(__x86_64__) && !defined(DISPATCHMON_NO_CLONES)
__attribute__((target("avx,f16c")))
static void from_f16(const char *__restrict p, int n, void *__restrict out, double scale) {
  float *y = out;
  int whole = __builtin_cpu_supports("avx2") ? n / 8 * 8 : 0; /* no processor has AVX2 without F16C */
  for (int i = 0; i < whole; i += 8)
    _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 2 * i))));
  from_f16_bits(p + 2 * whole, n - whole, y + whole, scale);
}
#else
#define from_f16 from_f16_bits
#endif
#endif
CONVERT(from_bf16, uint16_t, float, float_of((uint32_t)x << 16))
CONVERT(from_e4m3fn, uint8_t, float, small_float(x, 8, 3, 7, 0x7f))
CONVERT(from_e5m2, uint8_t, float, small_float(x, 8, 2, 15, 0x7c))
CONVERT(from_e4m3fnuz, uint8_t, float, x == 0x80 ? NAN : small_float(x, 8, 3, 8, 0x80))
CONVERT(from_e5m2fnuz, uint8_t, float, x == 0x80 ? NAN : small_float(x, 8, 2, 16, 0x80))
/* 2^(x - 127): the exponent alone, but 0 is subnormal in float32 and 255 is NaN */
CONVERT(from_e8m0fnu, uint8_t, float, float_of((uint32_t)x << 23 | (x == 0 || x == 255 ? 0x400000u : 0)))
CONVERT(from_bool, uint8_t, float, x != 0)
CONVERT(from_i8, int8_t, float, x)
CONVERT(from_u8, uint8_t, float, x)
CONVERT(from_i16, int16_t, double, x)
CONVERT(from_u16, uint16_t, double, x)
CONVERT(from_i32, int32_t, double, x)
CONVERT(from_u32, uint32_t, double, x)
CONVERT(widen, float, double, x)
CONVERT(from_f64, double, double, x * scale)

/* Finite parts can have a magnitude above the largest double: it counts as that, and brings about the scaled pass. */
static inline double magnitude(double re, double im, double scale) {
  double a = fabs(re), b = fabs(im), peak = a > b ? a : b, s = peak > 1e130 ? 0x1p-600 : peak < 1e-130 ? 0x1p+600 : 1;
  double m = sqrt(re * s * (re * s) + im * s * (im * s)) * (scale / s);
  return m > DBL_MAX && a <= DBL_MAX && b <= DBL_MAX ? DBL_MAX : m;
}
#define CONVERT_COMPLEX(NAME, PART, VALUE)                                                     \
  CLONES static void NAME(const char *__restrict p, int n, void *__restrict out, double scale) { \
    double *y = out;                                                                           \
    (void)scale;                                                                               \
    for (int i = 0; i < n; i++) {                                                              \
      PART re, im;                                                                             \
      memcpy(&re, p + 2 * i * sizeof re, sizeof re);                                           \
      memcpy(&im, p + (2 * i + 1) * sizeof im, sizeof im);                                     \
      y[i] = VALUE;                                                                            \
    }                                                                                          \
  }
CONVERT_COMPLEX(from_c64, float, sqrt((double)re * re + (double)im * im))
CONVERT_COMPLEX(from_c128, double, magnitude(re, im, scale))

/* --- 64-bit integers: measured as differences from the tensor's first element, so that a small spread survives the
 * 53 bits of a double. Unsigned ones are shifted by 2^63 first, which changes no difference. ----------------------- */

/* The plain conversion vectorizes with AVX-512 alone, this one everywhere: two halves, exact, then one rounding. */
static inline double rounded(int64_t x) {
  double high = double_of((((uint64_t)x >> 32) ^ 0x80000000u) | UINT64_C(0x4530000000000000));
  double low = double_of(((uint64_t)x & 0xffffffffu) | UINT64_C(0x4330000000000000));
  return high - 0x1.00000801p+84 + low;
}
typedef struct { int64_t lo, hi, zero; } Range;
CLONES static void differences(const char *__restrict p, int n, uint64_t flip, int64_t origin,
                               double *__restrict out, Range *__restrict r) {
  int64_t lo = INT64_MAX, hi = INT64_MIN, zero = 0;
  for (int i = 0; i < n; i++) {
    uint64_t u;
    memcpy(&u, p + i * sizeof u, sizeof u);
    int64_t x = (int64_t)(u ^ flip);
    lo = x < lo ? x : lo;
    hi = x > hi ? x : hi;
    zero += u == 0;
    out[i] = rounded((int64_t)((uint64_t)x - (uint64_t)origin));
  }
  *r = (Range){lo, hi, zero};
}
CLONES static void far_differences(const char *__restrict p, int n, uint64_t flip, int64_t origin,
                                   double *__restrict out) {
  for (int i = 0; i < n; i++) {
    uint64_t u;
    memcpy(&u, p + i * sizeof u, sizeof u);
    out[i] = rounded((int64_t)(u ^ flip)) - rounded(origin);
  }
}

/* --- Dtypes ----------------------------------------------------------------------------------------------------- */

typedef enum { FLOAT, DOUBLE, LONG } Kernel;
typedef struct { const char *name; int width; Kernel kernel; Convert *convert; } Dtype; /* no convert: as it lies */
static const Dtype DTYPES[] = {
    {"float32", 4, FLOAT, NULL},
    {"float64", 8, DOUBLE, NULL},
    {"float16", 2, FLOAT, from_f16},
    {"bfloat16", 2, FLOAT, from_bf16},
    {"float8_e4m3fn", 1, FLOAT, from_e4m3fn},
    {"float8_e5m2", 1, FLOAT, from_e5m2},
    {"float8_e4m3fnuz", 1, FLOAT, from_e4m3fnuz},
    {"float8_e5m2fnuz", 1, FLOAT, from_e5m2fnuz},
    {"float8_e8m0fnu", 1, FLOAT, from_e8m0fnu},
    {"int64", 8, LONG, NULL},
    {"int32", 4, DOUBLE, from_i32},
    {"int16", 2, DOUBLE, from_i16},
    {"int8", 1, FLOAT, from_i8},
    {"uint8", 1, FLOAT, from_u8},
    {"uint16", 2, DOUBLE, from_u16},
    {"uint32", 4, DOUBLE, from_u32},
    {"uint64", 8, LONG, NULL},
    {"bool", 1, FLOAT, from_bool},
    {"complex64", 8, DOUBLE, from_c64},
    {"complex128", 16, DOUBLE, from_c128},
};
enum { DTYPE_COUNT = sizeof DTYPES / sizeof *DTYPES };

/* --- Blocks ------------------------------------------------------------------------------------------------------ */

/* What the caller packs. Strides count elements; `run` elements are `step` apart, then dimension 0 varies fastest.
 * `repeat` is how often each element counts, for expanded dimensions, which the caller leaves out. */
typedef struct { int64_t dtype, run, step, dims, repeat, size[DIMS], stride[DIMS]; } Layout;
#define LAYOUT_FORMAT "21q"
typedef struct {
  Layout layout;
  const Dtype *dtype;
  const char *start;
  int64_t count, chunk;  /* elements in all and in a chunk */
  double scale;          /* a power of two, 1 unless squares would leave the range of double */
  uint64_t flip;         /* 2^63 for uint64 */
  int64_t origin;        /* first element of a 64-bit integer tensor */
} Job;

static void measure_floats(const char *p, int n, Total *t) {
  double buffer[BLOCK];
  int whole = n / LANES_32 * LANES_32;
  Total b;
  if (whole && fast_f32(p, whole, &b)) merge(t, &b);
  else whole = 0;
  if (whole == n) return;
  widen(p + whole * sizeof(float), n - whole, buffer, 1);
  measure_carefully(buffer, n - whole, t);
}
static void measure_doubles(const char *p, int n, Total *t) {
  double buffer[BLOCK];
  int whole = n / LANES_64 * LANES_64;
  Total b;
  if (whole && fast_f64(p, whole, &b)) merge(t, &b);
  else whole = 0;
  if (whole == n) return;
  memcpy(buffer, p + whole * sizeof(double), (n - whole) * sizeof(double));
  measure_carefully(buffer, n - whole, t);
}
static void measure_longs(const Job *job, const char *p, int n, Total *t) {
  double buffer[BLOCK];
  Total b = NOTHING;
  Range r;
  differences(p, n, job->flip, job->origin, buffer, &r);
  if ((r.lo < 0 && job->origin > r.lo + INT64_MAX) || (r.hi >= 0 && job->origin < r.hi - INT64_MAX)) /* over 63 bits */
    far_differences(p, n, job->flip, job->origin, buffer);
  measure_doubles((const char *)buffer, n, &b);
  b.min = job->flip ? (double)((uint64_t)r.lo ^ job->flip) : (double)r.lo;
  b.max = job->flip ? (double)((uint64_t)r.hi ^ job->flip) : (double)r.hi;
  b.zero = (double)r.zero;
  merge(t, &b);
}
static void measure_block(const Job *job, const char *p, int n, Total *t) {
  union { float f[BLOCK]; double d[BLOCK]; } converted;
  Convert *convert = job->scale == 1 || job->dtype->convert ? job->dtype->convert : from_f64;
  if (convert) {
    convert(p, n, &converted, job->scale);
    p = (const char *)&converted;
  }
  if (job->dtype->kernel == FLOAT) measure_floats(p, n, t);
  else if (job->dtype->kernel == DOUBLE) measure_doubles(p, n, t);
  else measure_longs(job, p, n, t);
}

typedef struct { const char *row; int64_t at, index[DIMS]; } Cursor; /* element `at` of the run that starts at `row` */

static Cursor seek(const Job *job, int64_t element) {
  const Layout *l = &job->layout;
  Cursor c = {.row = job->start, .at = element % l->run};
  int64_t rest = element / l->run;
  for (int d = 0; d < l->dims; d++) {
    c.index[d] = rest % l->size[d], rest /= l->size[d];
    c.row += c.index[d] * l->stride[d] * job->dtype->width;
  }
  return c;
}
static void next_row(const Job *job, Cursor *c) {
  const Layout *l = &job->layout;
  c->at = 0;
  for (int d = 0; d < l->dims; d++) {
    c->row += l->stride[d] * job->dtype->width;
    if (++c->index[d] < l->size[d]) return;
    c->row -= l->size[d] * l->stride[d] * job->dtype->width;
    c->index[d] = 0;
  }
}
static void gather(char *out, const char *in, int64_t n, int64_t step, int width) {
#define COPY(WIDTH) case WIDTH: for (int64_t i = 0; i < n; i++) memcpy(out + i * WIDTH, in + i * step, WIDTH); return;
  if (step == width && n * width >= 64) { memcpy(out, in, n * width); return; }
  switch (width) { COPY(1) COPY(2) COPY(4) COPY(8) COPY(16) }
}
/* The next n elements, dense: where they lie, or else in the buffer. */
static const char *take(const Job *job, Cursor *c, int n, char *buffer) {
  const int64_t width = job->dtype->width, step = job->layout.step * width, run = job->layout.run;
  if (c->at == run) next_row(job, c);
  if (job->layout.step == 1 && run - c->at >= n) {
    const char *p = c->row + c->at * width;
    c->at += n;
    return p;
  }
  for (int done = 0; done < n;) {
    if (c->at == run) next_row(job, c);
    int part = run - c->at < n - done ? (int)(run - c->at) : n - done;
    gather(buffer + done * width, c->row + c->at * step, part, step, (int)width);
    c->at += part, done += part;
  }
  return buffer;
}

static Total measure_chunk(const Job *job, int64_t number) {
  char buffer[BLOCK * WIDEST];
  Total t = NOTHING;
  int64_t first = number * job->chunk, left = job->count - first < job->chunk ? job->count - first : job->chunk;
  Cursor c = seek(job, first);
  for (; left > 0; left -= BLOCK) {
    int n = left < BLOCK ? (int)left : BLOCK;
    measure_block(job, take(job, &c, n, buffer), n, &t);
  }
  return t;
}

/* --- The floating-point environment ------------------------------------------------------------------------------ */

/* The caller's may flush subnormals (torch.set_flush_denormal), round otherwise or trap on NaN, and its exception
 * flags are its own: measure in the default one, and put back what was there. */
#if defined(__x86_64__) || defined(_M_X64)
typedef unsigned Environment;
static Environment enter_environment(void) { Environment saved = _mm_getcsr(); _mm_setcsr(0x1f80); return saved; }
static void leave_environment(Environment saved) { _mm_setcsr(saved); }
#elif defined(__aarch64__) && defined(__GNUC__)
typedef struct { uint64_t control, status; } Environment;
static Environment enter_environment(void) {
  Environment saved;
  __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr\n\tmsr fpcr, xzr"
                   : "=&r"(saved.control), "=&r"(saved.status) : : "memory");
  return saved;
}
static void leave_environment(Environment saved) {
  __asm__ volatile("msr fpcr, %0\n\tmsr fpsr, %1" : : "r"(saved.control), "r"(saved.status) : "memory");
}
#else
typedef int Environment;
static Environment enter_environment(void) { return 0; }
static void leave_environment(Environment saved) { (void)saved; }
#endif

/* --- Whole tensors ----------------------------------------------------------------------------------------------- */

typedef struct { const Job *job; int64_t chunks, next; Total totals[CHUNKS]; } Work;

#ifdef HAVE_THREADS
static void share(void *argument) {
  Work *w = argument;
  Environment saved = enter_environment();
  for (int64_t i; (i = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED)) < w->chunks;)
    w->totals[i] = measure_chunk(w->job, i);
  leave_environment(saved);
}
static void *share_in_thread(void *argument) {
  share(argument);
  return NULL;
}
/* torch's OpenMP threads, where torch is loaded and they speak GNU's dialect (GNU, Intel and LLVM on Linux do). They
 * spin for a while after each operator, so they are awake, and a thread of our own would have to fight them for a core.
 * In the child of a fork they do not exist, and libgomp would wait for them forever. */
typedef void Parallel(void (*function)(void *), void *argument, unsigned threads, unsigned flags);
static Parallel *openmp(pid_t home) {
  Parallel *parallel = NULL;
#ifdef __linux__
  void *symbol = getpid() == home ? dlsym(RTLD_DEFAULT, "GOMP_parallel") : NULL;
  memcpy(&parallel, &symbol, sizeof parallel);
#else
  (void)home;
#endif
  return parallel;
}
/* Without those, threads live for one call (30 to 50 microseconds): a pool would be state. */
static void run_in_threads(Work *w, int64_t threads, pid_t home) {
  Parallel *parallel = openmp(home);
  if (parallel) { parallel(share, w, (unsigned)threads, 0); return; }
  pthread_t helpers[MAX_THREADS];
  int started = 0, wanted = w->job->count < OWN_THREADS ? 1 : (int)(threads < MAX_THREADS ? threads : MAX_THREADS);
  while (started < wanted - 1 && pthread_create(&helpers[started], NULL, share_in_thread, w) == 0) started++;
  share(w);
  while (started) pthread_join(helpers[--started], NULL);
}
#endif

static Total measure_chunks(const Job *job, int64_t threads, pid_t home) {
  Work w; /* not initialised as a whole: the totals are 18 KB */
  Total t = NOTHING;
  w.job = job, w.chunks = (job->count + job->chunk - 1) / job->chunk, w.next = 0;
#ifdef HAVE_THREADS
  if (threads > 1 && job->count >= LARGE) run_in_threads(&w, threads, home);
  else
#endif
  for (; w.next < w.chunks; w.next++) w.totals[w.next] = measure_chunk(job, w.next);
  for (int64_t i = 0; i < w.chunks; i++) merge(&t, &w.totals[i]);
  return t;
}

enum { COUNT, MIN, MAX, MEAN, SPREAD, NORM, NANS, INFS, POSINFS, ZEROS, TOTALS };

/* The spread is the root of the centred sum of squares, which itself would leave the range of double. */
static void measure_all(Job *job, int64_t threads, pid_t home, double *out) {
  Environment saved = enter_environment();
  Total t = measure_chunks(job, threads, home);
  double peak = fmax(fabs(t.min), fabs(t.max)), repeat = (double)job->layout.repeat, norm, spread;
  if (t.count && peak && (peak > 1e130 || peak < 1e-130)) { /* only float64 and complex128 get there */
    int exponent;
    frexp(peak, &exponent);
    job->scale = ldexp(1, exponent < -1000 ? 1000 : -exponent);
    Total scaled = measure_chunks(job, threads, home);
    norm = sqrt(scaled.m2 + scaled.count * scaled.mean * scaled.mean) * sqrt(repeat) / job->scale;
    t.mean = scaled.mean / job->scale;
    spread = sqrt(scaled.m2 * repeat) / job->scale;
  } else {
    t.mean += job->flip ? (double)((uint64_t)job->origin ^ job->flip) : (double)job->origin;
    norm = sqrt(t.m2 + t.count * t.mean * t.mean) * sqrt(repeat);
    spread = sqrt(t.m2 * repeat);
  }
  out[COUNT] = t.count * repeat, out[MIN] = t.min, out[MAX] = t.max;
  out[MEAN] = t.mean, out[SPREAD] = spread, out[NORM] = norm;
  out[NANS] = t.nan * repeat, out[INFS] = t.inf * repeat, out[POSINFS] = t.posinf * repeat;
  out[ZEROS] = t.zero * repeat;
  leave_environment(saved);
}

/* --- Python ------------------------------------------------------------------------------------------------------ */

PyDoc_STRVAR(MEASURE,
  "measure(row_address, pointer, layout, threads) -> int\n--\n\n"
  "Write TOTALS float64 to row_address, named by COLUMNS, and return the number of NaN and Inf elements.\n\n"
  "layout is struct.pack(LAYOUT_FORMAT, DTYPES[name], run, step, dims, repeat, *size, *stride), with size and stride\n"
  "filled up to 8 entries and strides in elements: run elements are step apart, dimension 0 is the next. spread is\n"
  "the root of the sum of squared differences from mean. Of a complex element the magnitude is measured. With no finite element min\n"
  "is inf, max is -inf and mean is 0.");

static PyObject *measure(PyObject *self, PyObject *const *args, Py_ssize_t n) {
  pid_t home = *(const pid_t *)PyModule_GetState(self);
  if (n != 4) return PyErr_Format(PyExc_TypeError, "measure() takes 4 arguments (%zd given)", n);
  double *row = PyLong_AsVoidPtr(args[0]), out[TOTALS];
  const char *pointer = PyLong_AsVoidPtr(args[1]);
  char *packed;
  Py_ssize_t length;
  if (PyErr_Occurred() || PyBytes_AsStringAndSize(args[2], &packed, &length) < 0) return NULL;
  int64_t threads = PyLong_AsLongLong(args[3]);
  if (PyErr_Occurred()) return NULL;
  Job job = {.start = pointer, .scale = 1};
  Layout *l = &job.layout;
  if (length != sizeof *l)
    return PyErr_Format(PyExc_ValueError, "a layout has %d bytes, this one has %zd", (int)sizeof *l, length);
  memcpy(l, packed, sizeof *l);
  if (l->dtype < 0 || l->dtype >= DTYPE_COUNT)
    return PyErr_Format(PyExc_ValueError, "no dtype has code %lld", (long long)l->dtype);
  if (l->dims < 0 || l->dims > DIMS)
    return PyErr_Format(PyExc_ValueError, "a layout has 0 to %d outer dimensions, not %lld", DIMS, (long long)l->dims);
  job.dtype = &DTYPES[l->dtype];
  job.count = l->repeat ? l->run : 0;
  for (int d = 0; d < l->dims; d++) job.count *= l->size[d];
  int64_t share = (job.count / CHUNKS / BLOCK + 1) * BLOCK;
  job.chunk = share > MIN_CHUNK ? share : MIN_CHUNK;
  if (job.dtype->kernel == LONG && job.count) {
    uint64_t first;
    memcpy(&first, pointer, sizeof first);
    job.flip = strcmp(job.dtype->name, "uint64") ? 0 : UINT64_C(1) << 63;
    job.origin = (int64_t)(first ^ job.flip);
  }
  if (job.count >= LARGE) {
    Py_BEGIN_ALLOW_THREADS
    measure_all(&job, threads, home, out);
    Py_END_ALLOW_THREADS
  } else measure_all(&job, threads, home, out);
  memcpy(row, out, sizeof out);
  return PyLong_FromDouble(out[NANS] + out[INFS]);
}

static int fill(PyObject *module) {
  *(pid_t *)PyModule_GetState(module) = getpid();
  PyObject *columns = Py_BuildValue("(ssssssssss)", "count", "min", "max", "mean", "spread", "norm", "nan", "inf", "posinf",
                                    "zero");
  PyObject *dtypes = PyDict_New();
  int failed = !dtypes || !columns;
  for (int i = 0; i < DTYPE_COUNT && !failed; i++) {
    PyObject *code = PyLong_FromLong(i);
    failed = !code || PyDict_SetItemString(dtypes, DTYPES[i].name, code) < 0;
    Py_XDECREF(code);
  }
  failed = failed || PyModule_AddObjectRef(module, "DTYPES", dtypes) < 0 ||
           PyModule_AddObjectRef(module, "COLUMNS", columns) < 0 ||
           PyModule_AddIntConstant(module, "TOTALS", TOTALS) < 0 ||
           PyModule_AddStringConstant(module, "LAYOUT_FORMAT", LAYOUT_FORMAT) < 0;
  Py_XDECREF(dtypes);
  Py_XDECREF(columns);
  return failed ? -1 : 0;
}
static PyMethodDef METHODS[] = {
    {"measure", (PyCFunction)(void (*)(void))measure, METH_FASTCALL, MEASURE},
    {NULL, NULL, 0, NULL},
};
static PyModuleDef_Slot SLOTS[] = {
    {Py_mod_exec, (void *)fill},
#ifdef Py_mod_gil /* nothing is shared, so nothing needs the lock */
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};
static struct PyModuleDef MODULE = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_kernel",
    .m_doc = "Statistics of CPU memory in one pass.",
    .m_size = sizeof(pid_t),
    .m_methods = METHODS,
    .m_slots = SLOTS,
};
PyMODINIT_FUNC PyInit__kernel(void) { return PyModuleDef_Init(&MODULE); }
