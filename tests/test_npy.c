/* npy: arrays come back as they were written, files of NumPy's three formats as NumPy would read them, and no
 * file, however broken or hostile, does more than earn one line that says what is wrong. Archives to break
 * are made with libzip and then patched. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/npy.h"
#include "lab/rng.h"

#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zip.h>

enum { MAX_BYTES = 1 << 17 };

/* Each test removes what it made; the last one to go is the directory, which must be empty by then. */
static char dir[] = "/tmp/tandem-npy-XXXXXX";

struct bytes {
    unsigned char data[MAX_BYTES];
    size_t n;
};

static struct bytes scratch, other;

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static int count_files(void)
{
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void put_file(const char *name, const struct bytes *b)
{
    FILE *f = fopen(path_of(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b->data, 1, b->n, f), b->n);
    assert_int_equal(fclose(f), 0);
}

static void get_file(const char *name, struct bytes *b)
{
    FILE *f = fopen(path_of(name), "rb");
    assert_non_null(f);
    b->n = fread(b->data, 1, sizeof b->data, f);
    fclose(f);
}

static void append(struct bytes *b, const void *data, size_t n)
{
    assert_true(b->n + n <= sizeof b->data);
    if (n > 0) memcpy(b->data + b->n, data, n);
    b->n += n;
}

/* A .npy with this header text, as it stands, and data. */
static struct bytes *npy_of(int version, const char *header, const void *data, size_t n)
{
    const size_t length = strlen(header);
    const unsigned char start[12] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', (unsigned char)version, 0, length & 0xff, length >> 8 & 0xff};
    scratch.n = 0;
    append(&scratch, start, version == 1 ? 10 : 12);
    append(&scratch, header, length);
    append(&scratch, data, n);
    return &scratch;
}

#define HEADER(descr, order, shape) "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape ", }\n"

static struct npy_file read_good(const struct bytes *b, const char *name)
{
    struct npy_file f;
    struct why why = {""};
    put_file(name, b);
    if (npz_read(path_of(name), &f, &why) != STATUS_OK) fail_msg("'%s'", why.text);
    assert_int_equal(unlink(path_of(name)), 0);
    return f;
}

/* One line, with the file and the fragment in it, and nothing to free. */
static void expect_bad(const char *name, enum status want, const char *fragment)
{
    struct npy_file f;
    struct why why = {""};
    const enum status got = npz_read(path_of(name), &f, &why);
    if (got != want || !strstr(why.text, fragment) || !strstr(why.text, name) || strchr(why.text, '\n'))
        fail_msg("got %d '%s', want %d '%s'", got, why.text, want, fragment);
    assert_null(f.arrays);
    assert_int_equal(f.n, 0);
    assert_int_equal(npz_read(path_of(name), &f, NULL), want);
}

static void expect_bad_bytes(const struct bytes *b, const char *fragment)
{
    put_file("bad.npy", b);
    expect_bad("bad.npy", STATUS_BAD_INPUT, fragment);
    assert_int_equal(unlink(path_of("bad.npy")), 0);
}

/* An archive of members with the given contents, by libzip. */
struct member {
    const char *name;
    const struct bytes *content;
    int method;
};

static void zip_of(const char *name, const struct member *members, int n)
{
    zip_t *zip = zip_open(path_of(name), ZIP_CREATE | ZIP_TRUNCATE, NULL);
    assert_non_null(zip);
    for (int i = 0; i < n; i++) {
        const struct bytes *b = members[i].content;
        zip_source_t *source = zip_source_buffer(zip, b->data, b->n, 0);
        const zip_int64_t at = zip_file_add(zip, members[i].name, source, ZIP_FL_ENC_UTF_8);
        assert_true(at >= 0);
        assert_int_equal(zip_set_file_compression(zip, (zip_uint64_t)at, members[i].method, 0), 0);
    }
    assert_int_equal(zip_close(zip), 0);
}

/* The i-th place of a 4-byte ZIP signature "PK" a b. */
static unsigned char *signature(struct bytes *b, char a, int i)
{
    const char wanted[4] = {'P', 'K', a, (char)(a + 1)};
    for (size_t at = 0; at + 4 <= b->n; at++)
        if (memcmp(b->data + at, wanted, 4) == 0 && i-- == 0) return b->data + at;
    fail_msg("no signature %d", a);
    return NULL;
}

static void put32(unsigned char *at, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (unsigned char)(value >> 8 * i);
}

/* ---- reading one array ---- */

static void test_headers(void **state)
{
    static const char *const good[] = {
        HEADER("'<i2'", "False", "(3,)"),
        "{'shape': (3,), 'descr': '<i2', 'fortran_order': False}",
        "{\"fortran_order\":False,\"shape\":(3,),\"descr\":\"<i2\"}",
        "  \t{ 'descr'\n: '<i2' , 'fortran_order' :False,'shape' : ( 3 , ) , }  \n",
        "{'descr': 'i2', 'fortran_order': True, 'shape': (3L,), }\n", /* as Python 2 wrote it */
        HEADER("'=i2'", "False", "(3,)"),
        HEADER("'|i2'", "False", "(1, 3, 1, 1, 1, 1, 1, 1)"),
        HEADER("'<i2'", "True", "(3,)                                                   "),
    };
    const int16_t data[] = {1, -2, 300};
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        for (int version = 1; version <= 3; version++) {
            struct npy_file f = read_good(npy_of(version, good[i], data, sizeof data), "some.name.npy");
            assert_int_equal(f.n, 1);
            const struct npy_array *a = npy_find(&f, "some.name");
            assert_non_null(a);
            assert_int_equal(a->kind, 'i');
            assert_int_equal(a->item_bytes, 2);
            assert_int_equal(a->n, 3);
            assert_int_equal(a->bytes, 6);
            assert_memory_equal(a->data, data, sizeof data);
            assert_int_equal((uintptr_t)a->data % 64, 0);
            npy_file_free(&f);
            npy_file_free(&f);
        }
}

/* Element [i][j][k] holds 100 i + 10 j + k; stored with the first index fastest. */
static void test_fortran_order(void **state)
{
    int32_t two[6], three[24];
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++) {
            two[i + 2 * j] = 100 * i + 10 * j;
            for (int k = 0; k < 4; k++)
                three[i + 2 * j + 6 * k] = (int32_t)__builtin_bswap32((uint32_t)(100 * i + 10 * j + k));
        }
    struct npy_file f = read_good(npy_of(1, HEADER("'<i4'", "True", "(2, 3)"), two, sizeof two), "f.npy");
    struct npy_file g =
        read_good(npy_of(1, HEADER("'>i4'", "True", "(2, 3, 4)"), three, sizeof three), "g.npy");
    const int32_t *x = f.arrays[0].data, *y = g.arrays[0].data;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++) {
            assert_int_equal(x[3 * i + j], 100 * i + 10 * j);
            for (int k = 0; k < 4; k++)
                assert_int_equal(y[12 * i + 4 * j + k], 100 * i + 10 * j + k);
        }
    npy_file_free(&f);
    npy_file_free(&g);
    f = read_good(npy_of(1, HEADER("'<i4'", "True", "(2, 0, 3)"), NULL, 0), "f.npy");
    assert_int_equal(f.arrays[0].n, 0);
    assert_int_equal(f.arrays[0].dim[2], 3);
    assert_non_null(f.arrays[0].data);
    npy_file_free(&f);
}

static void test_big_endian(void **state)
{
    static const struct {
        const char *header;
        unsigned char stored[8], want[8];
        size_t n;
    } cases[] = {
        {HEADER("'>u2'", "False", "(2,)"), {1, 2, 3, 4}, {2, 1, 4, 3}, 4},
        {HEADER("'>f4'", "False", "()"), {0x3f, 0x80, 0, 0}, {0, 0, 0x80, 0x3f}, 4},
        {HEADER("'>i8'", "False", "(1,)"), {1, 2, 3, 4, 5, 6, 7, 8}, {8, 7, 6, 5, 4, 3, 2, 1}, 8},
        {HEADER("'>U2'", "False", "()"), {0, 0, 0, 'o', 0, 0, 0, 'k'}, {'o', 0, 0, 0, 'k', 0, 0, 0}, 8},
        {HEADER("'>u1'", "False", "(2,)"), {1, 2}, {1, 2}, 2},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct npy_file f = read_good(npy_of(1, cases[i].header, cases[i].stored, cases[i].n), "big.npy");
        assert_int_equal(f.arrays[0].bytes, cases[i].n);
        assert_memory_equal(f.arrays[0].data, cases[i].want, cases[i].n);
        npy_file_free(&f);
    }
}

static void test_bad_headers(void **state)
{
    static const struct {
        const char *header, *fragment;
    } cases[] = {
        {"", "byte 0: expected a Python dict"},
        {"[]", "expected a Python dict"},
        {"{'descr': '<f4', 'fortran_order': False}", "descr, fortran_order and shape, each once"},
        {"{}", "each once"},
        {"{,}", "expected a key"},
        {"{'descr': '<f4', 'descr': '<f4', 'shape': (1,), 'fortran_order': False}", "each once"},
        {"{'descr': '<f4', 'more': 1, 'shape': (1,), 'fortran_order': False}", "byte 23: expected descr,"},
        {"{'descr' '<f4'}", "expected ':'"},
        {"{'descr': '<f4' 'shape': (1,)}", "expected ',' or '}'"},
        {"{'descr': '<f4", "a dtype such as"},
        {"{'descr': '<f\\x34'}", "a dtype such as"},
        {"{'descr': '<f4\n'}", "a dtype such as"},
        {"{'descr': f4}", "a dtype such as"},
        {"{'descr'", "expected ':'"},
        {"{'descr': '<f4'", "expected ',' or '}'"},
        {HEADER("'<f4'", "False", "(1,)") "x", "nothing after the dict"},
        {HEADER("[('a', '<f4')]", "False", "(1,)"), "not a structured one"},
        {HEADER("('<f4', (2,))", "False", "(1,)"), "not a structured one"},
        {HEADER("'|O'", "False", "(1,)"), "not '|O' (Python objects)"},
        {HEADER("'|S4'", "False", "(1,)"), "not '|S4'"},
        {HEADER("'<c8'", "False", "(1,)"), "not '<c8'"},
        {HEADER("'<M8[ns]'", "False", "(1,)"), "not '<M8[ns]'"},
        {HEADER("'<f3'", "False", "(1,)"), "not '<f3'"},
        {HEADER("'<f16'", "False", "(1,)"), "not '<f16'"},
        {HEADER("'<f4x'", "False", "(1,)"), "not '<f4x'"},
        {HEADER("'b2'", "False", "(1,)"), "not 'b2'"},
        {HEADER("'<U'", "False", "(1,)"), "not '<U'"},
        {HEADER("'<U0'", "False", "(1,)"), "not '<U0'"},
        {HEADER("'<U536870912'", "False", "(1,)"), "not '<U536870912'"},
        {HEADER("'|V999999999999999999999999999'", "False", "(1,)"), "a dtype such as"},
        {HEADER("'|V9999999999999999999'", "False", "(1,)"), "not '|V9"},
        {HEADER("'>V2'", "False", "(1,)"), "raw bytes without an order"},
        {HEADER("''", "False", "(1,)"), "not ''"},
        {HEADER("'<'", "False", "(1,)"), "not '<'"},
        {HEADER("'<f4'", "0", "(1,)"), "True or False"},
        {HEADER("'<f4'", "Falsehood", "(1,)"), "expected ',' or '}'"},
        {HEADER("'<f4'", "False", "1"), "a shape such as"},
        {HEADER("'<f4'", "False", "[1]"), "a shape such as"},
        {HEADER("'<f4'", "False", "(1)"), "(n,)"},
        {HEADER("'<f4'", "False", "(,)"), "a dimension"},
        {HEADER("'<f4'", "False", "(1 2)"), "expected ',' or ')'"},
        {HEADER("'<f4'", "False", "(-1,)"), "a dimension in 0..2^63-1"},
        {HEADER("'<f4'", "False", "(9223372036854775808,)"), "a dimension in 0..2^63-1"},
        {HEADER("'<f4'", "False", "(1, 1, 1, 1, 1, 1, 1, 1, 1)"), "at most 8 dimensions"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,", "a dimension"},
        {HEADER("'<f4'", "False", "(4294967296, 4294967296)"), "below 2^63"},
        {HEADER("'<f4'", "False", "(2305843009213693952,)"), "below 2^63"},
        {HEADER("'<f4'", "False", "(1099511627776,)"), "4 bytes of data: expected 4398046511104"},
        {HEADER("'<f4'", "False", "(0, 9223372036854775807, 9223372036854775807)"),
         "4 bytes of data: expected 0"},
        {HEADER("'<f4'", "False", "(2,)"), "4 bytes of data: expected 8"},
        {HEADER("'<f8'", "False", "()"), "4 bytes of data: expected 8"},
        {HEADER("'<f2'", "False", "()"), "4 bytes of data: expected 2"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int version = 1; version <= 3; version++)
            expect_bad_bytes(npy_of(version, cases[i].header, "data", 4), cases[i].fragment);
}

static void test_bad_preambles(void **state)
{
    struct bytes *b = npy_of(1, HEADER("'<f4'", "False", "()"), "data", 4);
    (void)state;
    b->data[6] = 4;
    expect_bad_bytes(b, "format 4.0: expected 1.0, 2.0 or 3.0");
    b->data[6] = 0;
    expect_bad_bytes(b, "format 0.0");
    b->data[6] = b->data[7] = 1;
    expect_bad_bytes(b, "format 1.1");
    b->data[7] = 0;
    b->data[9] = 1;
    expect_bad_bytes(b, "bytes: expected at most 65535, and no more than the");
    b->data[9] = 0;
    b->data[8]++; /* the data's first byte falls to the header */
    expect_bad_bytes(b, "nothing after the dict");
    b->data[8] = 7;
    expect_bad_bytes(b, "byte 7: expected a key");
    memset(b->data + 8, 0xff, 4);
    b->data[6] = 2;
    expect_bad_bytes(b, "header of 4294967295 bytes");
    b->n = 0;
    expect_bad_bytes(b, "empty");
    append(b, "\x93NUMP", 5);
    expect_bad_bytes(b, "expected an .npz archive or an .npy file");
    append(b, "Y", 1);
    expect_bad_bytes(b, "expected an .npy, which starts with");
    append(b, "\1\0\4", 3);
    expect_bad_bytes(b, "ends after 1 of the 2 bytes expected");
}

/* A header of exactly 64 KiB - 1 is read, a larger one is not. */
static void test_header_limit(void **state)
{
    static char header[65537];
    (void)state;
    memset(header, ' ', sizeof header);
    memcpy(header, HEADER("'|u1'", "False", "()"), strlen(HEADER("'|u1'", "False", "()")));
    header[65535] = '\0';
    struct npy_file f = read_good(npy_of(2, header, "x", 1), "long.npy");
    assert_int_equal(f.arrays[0].n_dims, 0);
    npy_file_free(&f);
    header[65535] = ' ';
    header[65536] = '\0';
    struct bytes *b = npy_of(2, header, "x", 1);
    put32(b->data + 8, 65536);
    expect_bad_bytes(b, "header of 65536 bytes");
}

/* ---- archives and directories ---- */

static void test_stored_and_deflated(void **state)
{
    static uint16_t values[3000];
    (void)state;
    for (int i = 0; i < 3000; i++)
        values[i] = (uint16_t)(i / 7);
    other = *npy_of(1, HEADER("'<u2'", "False", "(1000, 3)"), values, sizeof values);
    const struct bytes *text = npy_of(1, HEADER("'<U2'", "False", "()"), "h\0\0\0i\0\0\0", 8);
    zip_of("a.npz",
           (struct member[]){{"b.npy", &other, ZIP_CM_DEFLATE},
                             {"a.npy", text, ZIP_CM_STORE},
                             {"d/c.npy", &other, ZIP_CM_STORE}},
           3);
    struct npy_file f;
    char out[8];
    assert_int_equal(npz_read(path_of("a.npz"), &f, NULL), STATUS_OK);
    assert_int_equal(f.n, 3);
    assert_string_equal(f.arrays[0].name, "b");
    assert_null(npy_find(&f, "b.npy"));
    assert_memory_equal(npy_find(&f, "b")->data, values, sizeof values);
    assert_memory_equal(npy_find(&f, "d/c")->data, values, sizeof values);
    assert_int_equal(npy_get_text(npy_find(&f, "a"), out, sizeof out, NULL), STATUS_OK);
    assert_string_equal(out, "hi");
    npy_file_free(&f);
    unlink(path_of("a.npz"));
}

static void expect_bad_zip(const struct member *members, int n, const char *fragment)
{
    zip_of("bad.npz", members, n);
    expect_bad("bad.npz", STATUS_BAD_INPUT, fragment);
    unlink(path_of("bad.npz"));
}

static void test_bad_members(void **state)
{
    static const char long_name[] = "0123456789012345678901234567890123456789012345678901234567890123.npy";
    (void)state;
    other = *npy_of(1, HEADER("'<f4'", "False", "()"), "data", 4);
    const struct bytes *bad = npy_of(1, HEADER("'<f4'", "False", "(1099511627776,)"), "data", 4);
#define EXPECT_BAD_MEMBER(name, content, fragment)                                                         \
    expect_bad_zip((struct member[]){{"a.npy", &other, ZIP_CM_STORE}, {name, content, ZIP_CM_DEFLATE}}, 2, \
                   fragment)
    EXPECT_BAD_MEMBER("x.npy", bad, "x.npy: 4 bytes of data: expected 4398046511104");
    EXPECT_BAD_MEMBER("readme.txt", bad, "readme.txt: expected only members called .npy");
    EXPECT_BAD_MEMBER("dir/", &(struct bytes){.n = 0}, "dir/: expected only members called .npy");
    EXPECT_BAD_MEMBER("x.npy", &(struct bytes){.n = 0}, "x.npy: expected an .npy");
    EXPECT_BAD_MEMBER(".npy", &other, "the name of an array: expected 1..63 bytes");
    EXPECT_BAD_MEMBER("a\nb.npy", &other, "no control characters");
    EXPECT_BAD_MEMBER(long_name, &other, "the name of an array: expected 1..63 bytes");
    if (zip_compression_method_supported(ZIP_CM_BZIP2, 1))
        expect_bad_zip((struct member[]){{"x.npy", &other, ZIP_CM_BZIP2}}, 1, "x.npy: compression 12");
}

/* What libzip would not write: two members of a name, impossible sizes, a wrong checksum, no directory. */
static void test_patched_archives(void **state)
{
    static struct bytes good, b;
    (void)state;
    other = *npy_of(1, HEADER("'<f4'", "False", "()"), "data", 4);
    zip_of("bad.npz", (struct member[]){{"a.npy", &other, ZIP_CM_STORE}, {"b.npy", &other, ZIP_CM_STORE}}, 2);
    get_file("bad.npz", &good);
#define EXPECT_BAD_PATCH(change, fragment)                 \
    do {                                                   \
        b = good;                                          \
        change;                                            \
        put_file("bad.npz", &b);                           \
        expect_bad("bad.npz", STATUS_BAD_INPUT, fragment); \
    } while (0)
    EXPECT_BAD_PATCH((signature(&b, 1, 1)[46] = 'a', signature(&b, 3, 1)[30] = 'a'), "a.npy: twice");
    EXPECT_BAD_PATCH(put32(signature(&b, 1, 1) + 24, 0xfffffff0), "b.npy: 4294967280 bytes in ");
    const uint32_t most = (uint32_t)good.n; /* would do for one member, but not after another */
    EXPECT_BAD_PATCH((put32(signature(&b, 1, 1) + 20, most), put32(signature(&b, 1, 1) + 24, most)),
                     "b.npy: members of more bytes than the archive");
    EXPECT_BAD_PATCH((signature(&b, 1, 1)[10] = 8, put32(signature(&b, 1, 1) + 24, 0x7fffffff)),
                     "sizes that can be");
    EXPECT_BAD_PATCH(signature(&b, 1, 1)[10] = 8, "b.npy: ");
    EXPECT_BAD_PATCH(signature(&b, 1, 1)[10] = 12, "b.npy: compression 12");
    EXPECT_BAD_PATCH(signature(&b, 1, 0)[16] ^= 1, "a.npy: CRC error");
    EXPECT_BAD_PATCH(b.n -= 22, "expected an .npz archive");
    EXPECT_BAD_PATCH(b.n = 4, "expected an .npz archive");
    EXPECT_BAD_PATCH(signature(&b, 5, 0)[10] = 0xf0, "bad.npz: ");
    unlink(path_of("bad.npz"));
}

static void append64(struct bytes *b, uint64_t value)
{
    append(b, &value, sizeof value);
}

/* `b` with its end record replaced by zip64's, which claims so many members and a directory at `offset`. */
static struct bytes zip64_of(const struct bytes *b, uint64_t members, uint64_t offset)
{
    static struct bytes out;
    const size_t end = b->n - 22;
    uint32_t size;
    memcpy(&size, b->data + end + 12, 4);
    out.n = 0;
    append(&out, b->data, end);
    append(&out, "PK\6\6\54\0\0\0\0\0\0\0\55\0\55\0\0\0\0\0\0\0\0\0", 24);
    append64(&out, members);
    append64(&out, members);
    append64(&out, size);
    append64(&out, offset);
    append(&out, "PK\6\7\0\0\0\0", 8);
    append64(&out, end);
    append(&out, "\1\0\0\0PK\5\6\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0", 26);
    return out;
}

/* Claims that only zip64 can make; memory is not asked for on their word. */
static void test_zip64(void **state)
{
    static struct bytes good, b;
    (void)state;
    other = *npy_of(1, HEADER("'<f4'", "False", "()"), "data", 4);
    zip_of("x.npz", (struct member[]){{"a.npy", &other, ZIP_CM_STORE}}, 1);
    get_file("x.npz", &good);
    const uint64_t offset = (uint64_t)(signature(&good, 1, 0) - good.data);
    b = zip64_of(&good, 1, offset);
    struct npy_file f = read_good(&b, "x.npz");
    assert_memory_equal(npy_find(&f, "a")->data, "data", 4);
    npy_file_free(&f);
    b = zip64_of(&good, 1ULL << 40, offset);
    expect_bad_bytes(&b, "inconsistent");
    b = zip64_of(&good, UINT64_MAX, UINT64_MAX);
    expect_bad_bytes(&b, "bad.npy: ");
}

/* Whatever one byte becomes, and wherever the file ends, reading ends with arrays or with a reason. */
static void survive(const struct bytes *b, const char *name)
{
    struct npy_file f;
    struct why why = {""};
    put_file(name, b);
    const enum status status = npz_read(path_of(name), &f, &why);
    assert_true(status == STATUS_OK ||
                (status == STATUS_BAD_INPUT && why.text[0] && !strchr(why.text, '\n')) ||
                status == STATUS_IO);
    assert_true(status == STATUS_OK || !f.arrays);
    npy_file_free(&f);
    unlink(path_of(name));
}

static void damage(const struct bytes *whole, const char *name)
{
    static struct bytes b;
    for (size_t n = 0; n < whole->n; n++) {
        b = *whole;
        b.n = n;
        survive(&b, name);
    }
    for (size_t at = 0; at < whole->n; at++)
        for (int change = 1; change < 256; change = change * 2 + 1) {
            b.n = whole->n;
            memcpy(b.data, whole->data, b.n);
            b.data[at] ^= (unsigned char)change;
            survive(&b, name);
        }
}

static void test_damage(void **state)
{
    static struct bytes archive;
    (void)state;
    other = *npy_of(2, HEADER("'>U1'", "True", "(2, 3)"), "aaaabbbbccccddddeeeeffff", 24);
    damage(&other, "x.npy");
    zip_of("x.npz", (struct member[]){{"a.npy", &other, ZIP_CM_STORE}, {"b.npy", &other, ZIP_CM_DEFLATE}}, 2);
    get_file("x.npz", &archive);
    damage(&archive, "x.npz");
}

static void test_directory(void **state)
{
    struct npy_file f;
    char path[128];
    (void)state;
    expect_bad("", STATUS_BAD_INPUT, "no .npy file in the directory");
    put_file("b.npy", npy_of(1, HEADER("'|u1'", "False", "()"), "b", 1));
    put_file("a.npy", npy_of(1, HEADER("'|u1'", "False", "()"), "a", 1));
    put_file("readme.txt", &scratch);
    put_file(".hidden.npy", &(struct bytes){.n = 0});
    assert_int_equal(npz_read(dir, &f, NULL), STATUS_OK);
    assert_int_equal(f.n, 2);
    assert_string_equal(f.arrays[0].name, "a");
    assert_int_equal(*(char *)f.arrays[1].data, 'b');
    npy_file_free(&f);
    put_file("c.npy", &(struct bytes){.data = "PK", .n = 2});
    expect_bad("", STATUS_BAD_INPUT, "/c.npy: expected an .npy, which starts with");
    unlink(path_of("c.npy"));
    snprintf(path, sizeof path, "%s", path_of("c.npy"));
    assert_int_equal(mkdir(path, 0700), 0);
    expect_bad("", STATUS_IO, "/c.npy: expected a regular file");
    rmdir(path);
    unlink(path_of("a.npy"));
    unlink(path_of("b.npy"));
    unlink(path_of("readme.txt"));
    unlink(path_of(".hidden.npy"));
}

static void test_paths(void **state)
{
    struct npy_file f;
    struct why why;
    (void)state;
    expect_bad("absent.npz", STATUS_IO, "No such file");
    assert_int_equal(npz_read("/dev/null", &f, &why), STATUS_IO);
    assert_non_null(strstr(why.text, "/dev/null: expected a regular file"));
    put_file("any name at all, and a longer one than an array may have to itself",
             npy_of(1, HEADER("'|u1'", "False", "()"), "b", 1));
    expect_bad("any name at all, and a longer one than an array may have to itself", STATUS_BAD_INPUT,
               "1..63");
    unlink(path_of("any name at all, and a longer one than an array may have to itself"));
    f = read_good(npy_of(1, HEADER("'|u1'", "False", "()"), "b", 1), "weights.bin");
    assert_string_equal(f.arrays[0].name, "weights.bin");
    npy_file_free(&f);
}

/* ---- elements ---- */

static struct npy_array array(const char *name, char kind, int item_bytes, void *data, size_t n)
{
    struct npy_array a = {
        .kind = kind, .item_bytes = item_bytes, .n_dims = 1, .dim = {(int64_t)n}, .data = data, .n = n};
    snprintf(a.name, sizeof a.name, "%s", name);
    a.bytes = n * (size_t)item_bytes;
    return a;
}

static void test_get_int(void **state)
{
    struct npy_array a[] = {
        array("b", 'b', 1, (uint8_t[]){0, 1, 7}, 3),
        array("i1", 'i', 1, (int8_t[]){-128, 127}, 2),
        array("i2", 'i', 2, (int16_t[]){INT16_MIN, 5}, 2),
        array("i4", 'i', 4, (int32_t[]){INT32_MIN, INT32_MAX}, 2),
        array("i8", 'i', 8, (int64_t[]){INT64_MIN, INT64_MAX}, 2),
        array("u1", 'u', 1, (uint8_t[]){0, 255}, 2),
        array("u2", 'u', 2, (uint16_t[]){0, 65535}, 2),
        array("u4", 'u', 4, (uint32_t[]){0, UINT32_MAX}, 2),
        array("u8", 'u', 8, (uint64_t[]){0, INT64_MAX, UINT64_MAX}, 3),
        array("f2", 'f', 2, (uint16_t[]){0xc000, 0x3e00, 0x7c00, 0x7e00}, 4), /* -2, 1.5, inf, nan */
        array("f4", 'f', 4, (float[]){-3, 0.5F, INFINITY, NAN}, 4),
        array("f8", 'f', 8, (double[]){-0x1p63, 0x1p63, 1e300, 1.25}, 4),
    };
    static const int64_t want[][3] = {
        {0, 1, 1}, {-128, 127}, {INT16_MIN, 5},  {INT32_MIN, INT32_MAX}, {INT64_MIN, INT64_MAX},
        {0, 255},  {0, 65535},  {0, UINT32_MAX}, {0, INT64_MAX},         {-2},
        {-3},      {INT64_MIN}};
    static const size_t good[] = {3, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1};
    struct why why;
    int64_t x = 77;
    (void)state;
    for (size_t k = 0; k < sizeof a / sizeof a[0]; k++)
        for (size_t i = 0; i <= a[k].n; i++) {
            const enum status status = npy_get_int(&a[k], i, INT64_MIN, INT64_MAX, &x, &why);
            assert_int_equal(status, i < good[k] ? STATUS_OK : STATUS_BAD_INPUT);
            if (i < good[k]) assert_int_equal(x, want[k][i]);
        }
    x = 77;
    assert_int_equal(npy_get_int(&a[5], 1, 0, 254, &x, &why), STATUS_BAD_INPUT);
    assert_string_equal(why.text, "u1[1] = 255: expected a whole number in 0..254");
    assert_int_equal(npy_get_int(&a[2], 0, INT16_MIN + 1, 9, &x, &why), STATUS_BAD_INPUT);
    assert_int_equal(npy_get_int(&a[8], 2, INT64_MIN, INT64_MAX, &x, &why), STATUS_BAD_INPUT);
    assert_non_null(strstr(why.text, "u8[2] = 18446744073709551615"));
    assert_int_equal(npy_get_int(&a[10], 1, 0, 9, &x, &why), STATUS_BAD_INPUT);
    assert_string_equal(why.text, "f4[1] = 0.5: expected a whole number in 0..9");
    assert_int_equal(npy_get_int(&a[0], 3, 0, 9, &x, &why), STATUS_BAD_INPUT);
    assert_string_equal(why.text, "b: 3 elements: expected at least 4");
    a[5].n_dims = 0;
    a[5].n = 1;
    assert_int_equal(npy_get_int(&a[5], 0, 1, 9, &x, &why), STATUS_BAD_INPUT);
    assert_string_equal(why.text, "u1 = 0: expected a whole number in 1..9");
    assert_int_equal(x, 77);
}

static void test_get_real(void **state)
{
    const struct npy_array h = array("h", 'f', 2, (uint16_t[]){0x3e00, 0x0001, 0x7c00, 0x7e00}, 4);
    const struct npy_array f = array("f", 'f', 4, (float[]){0.1F}, 1),
                           d = array("d", 'f', 8, (double[]){0.1}, 1);
    const struct npy_array i = array("i", 'i', 8, (int64_t[]){-3}, 1),
                           u = array("u", 'u', 8, (uint64_t[]){UINT64_MAX}, 1);
    const struct npy_array e = array("e", 'f', 1, (uint8_t[]){0}, 1),
                           v = array("v", 'V', 2, (uint8_t[]){0, 0}, 1);
    struct why why;
    double x = 77;
    (void)state;
#define EXPECT_REAL(a, at, want)                                                          \
    do {                                                                                  \
        assert_int_equal(npy_get_real(&a, at, -INFINITY, INFINITY, &x, NULL), STATUS_OK); \
        assert_true(x == (want));                                                         \
    } while (0)
    EXPECT_REAL(h, 0, 1.5);
    EXPECT_REAL(h, 1, 0x1p-24);
    EXPECT_REAL(h, 2, INFINITY);
    EXPECT_REAL(f, 0, (double)0.1F);
    EXPECT_REAL(d, 0, 0.1);
    EXPECT_REAL(i, 0, -3);
    EXPECT_REAL(u, 0, 0x1p64);
    assert_int_equal(npy_get_real(&h, 3, -INFINITY, INFINITY, &x, &why), STATUS_BAD_INPUT); /* NaN */
    assert_int_equal(npy_get_real(&h, 0, 0, 1, &x, &why), STATUS_BAD_INPUT);
    assert_string_equal(why.text, "h[0] = 1.5: expected a number in 0..1");
    assert_int_equal(npy_get_real(&e, 0, 0, 1, &x, &why), STATUS_BAD_INPUT);
    assert_string_equal(why.text, "e: f1: expected bool, i, u, f2, f4 or f8");
    assert_int_equal(npy_get_real(&v, 0, 0, 1, &x, &why), STATUS_BAD_INPUT);
    assert_int_equal(npy_get_real(&d, 1, 0, 1, &x, &why), STATUS_BAD_INPUT);
}

static void test_get_text(void **state)
{
    uint32_t points[] = {'g', 'p', 'u', 0, 0};
    struct npy_array a = array("t", 'U', 20, points, 1);
    struct why why;
    char out[4] = "?";
    (void)state;
    assert_int_equal(npy_get_text(&a, out, sizeof out, &why), STATUS_BAD_INPUT);
    assert_string_equal(why.text, "t: U20 in 1 dimensions: expected a text scalar");
    a.n_dims = 0;
    assert_int_equal(npy_get_text(&a, out, 3, &why), STATUS_BAD_INPUT);
    assert_string_equal(why.text, "t: text of 3 characters: expected fewer than 3");
    assert_int_equal(npy_get_text(&a, out, 4, &why), STATUS_OK);
    assert_string_equal(out, "gpu");
    points[1] = 0xb5;
    assert_int_equal(npy_get_text(&a, out, 4, &why), STATUS_BAD_INPUT);
    assert_string_equal(why.text, "t: character 1 is U+00B5: expected ASCII");
    points[1] = 0;
    assert_int_equal(npy_get_text(&a, out, 4, &why), STATUS_BAD_INPUT);
    points[0] = points[2] = 0;
    assert_int_equal(npy_get_text(&a, out, 1, &why), STATUS_OK);
    assert_string_equal(out, "");
    a.kind = 'V';
    assert_int_equal(npy_get_text(&a, out, 4, &why), STATUS_BAD_INPUT);
}

/* ---- writing ---- */

static void write_good(const char *name, const struct npy_array *arrays, int n)
{
    struct npz_writer *w;
    struct why why = {""};
    assert_int_equal(npz_writer_open(path_of(name), &w, &why), STATUS_OK);
    for (int i = 0; i < n; i++)
        if (npz_writer_add(w, &arrays[i], &why) != STATUS_OK) fail_msg("'%s'", why.text);
    if (npz_writer_close(w, true, &why) != STATUS_OK) fail_msg("'%s'", why.text);
}

static void assert_same(const struct npy_array *a, const struct npy_array *b)
{
    assert_non_null(b);
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->item_bytes, b->item_bytes);
    assert_int_equal(a->n_dims, b->n_dims);
    assert_memory_equal(a->dim, b->dim, sizeof a->dim);
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->bytes, b->bytes);
    assert_memory_equal(a->data, b->data, a->bytes);
}

/* Every kind and width, as a scalar, empty, and in 1, 3 and 8 dimensions. */
static void test_round_trips(void **state)
{
    static const struct {
        char kind;
        int item_bytes;
    } types[] = {{'b', 1}, {'i', 1}, {'i', 2}, {'i', 4}, {'i', 8}, {'u', 1},  {'u', 2}, {'u', 4}, {'u', 8},
                 {'f', 1}, {'f', 2}, {'f', 4}, {'f', 8}, {'U', 4}, {'U', 28}, {'V', 1}, {'V', 2}, {'V', 13}};
    static const struct {
        int n_dims;
        int64_t dim[NPY_MAX_DIMS];
        size_t n;
    } shapes[] = {{0, {0}, 1},
                  {1, {0}, 0},
                  {1, {5}, 5},
                  {3, {2, 3, 4}, 24},
                  {3, {INT64_MAX, 7, 0}, 0},
                  {8, {1, 2, 1, 2, 1, 2, 1, 3}, 24}};
    enum {
        TYPES = sizeof types / sizeof types[0],
        SHAPES = sizeof shapes / sizeof shapes[0],
        N = TYPES * SHAPES
    };
    static struct npy_array arrays[N];
    static unsigned char data[28 * 24];
    struct npy_file f;
    (void)state;
    struct rng rng = {1};
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)rng_next(&rng);
    for (int i = 0; i < N; i++) {
        struct npy_array *a = &arrays[i];
        *a = array("", types[i / SHAPES].kind, types[i / SHAPES].item_bytes, data, shapes[i % SHAPES].n);
        snprintf(a->name, sizeof a->name, "array %d", i);
        a->n_dims = shapes[i % SHAPES].n_dims;
        memcpy(a->dim, shapes[i % SHAPES].dim, sizeof a->dim);
    }
    write_good("all.npz", arrays, N);
    assert_int_equal(npz_read(path_of("all.npz"), &f, NULL), STATUS_OK);
    assert_int_equal(f.n, N);
    for (int i = 0; i < N; i++) {
        assert_string_equal(f.arrays[i].name, arrays[i].name);
        assert_same(&arrays[i], &f.arrays[i]);
        assert_int_equal((uintptr_t)f.arrays[i].data % 64, 0);
    }
    npy_file_free(&f);
    unlink(path_of("all.npz"));
}

/* The member, byte for byte, is what NumPy 2's np.save writes. */
static void test_numpy_bytes(void **state)
{
    static const char want[] =
        "\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }"
        "                                                          \ndatadata";
    struct npy_array a = array("x", 'f', 4, "datadata", 2);
    (void)state;
    a.n_dims = 2;
    a.dim[0] = 1;
    a.dim[1] = 2;
    write_good("x.npz", &a, 1);
    get_file("x.npz", &scratch);
    assert_int_equal(sizeof want - 1, 128 + 8);
    size_t at = 0;
    while (at + sizeof want - 1 <= scratch.n && memcmp(scratch.data + at, want, sizeof want - 1) != 0)
        at++;
    assert_true(at + sizeof want - 1 <= scratch.n);
    unlink(path_of("x.npz"));
}

/* Neither the hour nor the time zone is in the bytes. */
static void test_same_bytes(void **state)
{
    static const char *const zones[] = {"UTC", "Asia/Tokyo", "America/Los_Angeles", "XYZ-13:30"};
    const struct npy_array arrays[] = {array("a", 'u', 1, "abc", 3), array("b", 'i', 2, NULL, 0)};
    (void)state;
    for (int i = 0; i < 4; i++) {
        setenv("TZ", zones[i], 1);
        tzset();
        write_good("a.npz", arrays, 2);
        get_file("a.npz", i == 0 ? &scratch : &other);
        if (i == 0) continue;
        assert_int_equal(scratch.n, other.n);
        assert_memory_equal(scratch.data, other.data, other.n);
    }
    assert_memory_equal(signature(&scratch, 3, 0) + 10, "\0\0\41\0", 4); /* 00:00, 1980-01-01 */
    unsetenv("TZ");
    tzset();
    unlink(path_of("a.npz"));
}

static void expect_bad_add(struct npy_array a, const char *fragment)
{
    const struct npy_array good = array("good", 'u', 1, "abc", 3);
    struct npz_writer *w;
    struct why why = {""};
    assert_int_equal(npz_writer_open(path_of("bad.npz"), &w, NULL), STATUS_OK);
    assert_int_equal(npz_writer_add(w, &good, NULL), STATUS_OK);
    assert_int_equal(npz_writer_add(w, &a, &why), STATUS_BAD_INPUT);
    if (!strstr(why.text, fragment) || !strstr(why.text, "bad.npz: "))
        fail_msg("'%s', want '%s'", why.text, fragment);
    memset(&why, 0, sizeof why);
    assert_int_equal(npz_writer_close(w, true, &why), STATUS_BAD_INPUT);
    assert_non_null(strstr(why.text, fragment));
    assert_int_equal(count_files(), 0);
}

static void test_bad_adds(void **state)
{
    struct npy_array a = array("x", 'u', 1, "abc", 3);
    (void)state;
#define EXPECT_BAD_ADD(change, fragment) \
    do {                                 \
        struct npy_array x = a;          \
        change;                          \
        expect_bad_add(x, fragment);     \
    } while (0)
    EXPECT_BAD_ADD(strcpy(x.name, "good"), "good.npy: twice");
    EXPECT_BAD_ADD(x.name[0] = '\0', "the name of an array");
    EXPECT_BAD_ADD(x.name[0] = '\n', "the name of an array");
    EXPECT_BAD_ADD(memset(x.name, 'x', sizeof x.name), "the name of an array");
    EXPECT_BAD_ADD(x.kind = 'O', "x: kind 79 of 1 bytes");
    EXPECT_BAD_ADD(x.item_bytes = 3, "x: kind 117 of 3 bytes");
    EXPECT_BAD_ADD(x.item_bytes = 0, "x: kind 117 of 0 bytes");
    EXPECT_BAD_ADD(x.n_dims = 9, "x: expected 0..8 dimensions");
    EXPECT_BAD_ADD(x.n_dims = -1, "x: expected 0..8 dimensions");
    EXPECT_BAD_ADD(x.dim[0] = -3, "x: expected 0..8 dimensions, none below 0");
    EXPECT_BAD_ADD(x.dim[0] = 4, "x: 3 elements, 3 bytes: expected what the shape holds");
    EXPECT_BAD_ADD((x.n_dims = 2, x.dim[0] = x.dim[1] = INT64_MAX), "expected what the shape holds");
    EXPECT_BAD_ADD(x.bytes = 4, "x: 3 elements, 4 bytes");
    EXPECT_BAD_ADD(x.data = NULL, "expected what the shape holds");
}

static void expect_bad_close(const char *path, const char *fragment)
{
    static uint8_t data[100000];
    const struct npy_array a = array("a", 'u', 1, data, sizeof data);
    struct npz_writer *w;
    struct why why = {""};
    assert_int_equal(npz_writer_open(path, &w, &why), STATUS_OK);
    assert_int_equal(npz_writer_add(w, &a, &why), STATUS_OK);
    assert_int_equal(npz_writer_close(w, true, &why), STATUS_IO);
    if (!strstr(why.text, fragment) || !strstr(why.text, path))
        fail_msg("'%s', want '%s'", why.text, fragment);
}

static void expect_bad_open(const char *path, enum status want, const char *fragment)
{
    struct npz_writer *w;
    struct why why = {""};
    assert_int_equal(npz_writer_open(path, &w, &why), want);
    if (!strstr(why.text, fragment)) fail_msg("'%s', want '%s'", why.text, fragment);
    assert_null(w);
}

/* A full disk is played by /dev/full, which is not ours to replace, and by a limit on the size of files. */
static void test_bad_writes(void **state)
{
    char path[128];
    struct rlimit old, small;
    (void)state;
    expect_bad_open("/nonexistent/x.npz", STATUS_IO, "/nonexistent/x.npz: No such file");
    expect_bad_open(dir, STATUS_IO, "is a directory");
    expect_bad_open("-", STATUS_BAD_INPUT, "stdout");
    expect_bad_close("/dev/full", "No space left");
    assert_int_equal(access("/dev/full", F_OK), 0);
    snprintf(path, sizeof path, "%s", path_of("big.npz"));
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    for (rlim_t limit = 0; limit < 100200; limit += 100100) {
        small = old;
        small.rlim_cur = limit; /* within the data; within the directory after it */
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        expect_bad_close(path, "File too large");
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(count_files(), 0);
    }
    signal(SIGXFSZ, SIG_DFL);
}

/* Someone makes a directory of that name meanwhile: the last step, the rename, fails. */
static void test_bad_rename(void **state)
{
    const struct npy_array a = array("a", 'u', 1, "abc", 3);
    char path[128];
    struct npz_writer *w;
    struct why why = {""};
    (void)state;
    snprintf(path, sizeof path, "%s", path_of("x.npz"));
    assert_int_equal(npz_writer_open(path, &w, NULL), STATUS_OK);
    assert_int_equal(npz_writer_add(w, &a, NULL), STATUS_OK);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(npz_writer_close(w, true, &why), STATUS_IO);
    assert_non_null(strstr(why.text, "x.npz: Is a directory"));
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(count_files(), 0);
}

/* An older archive stays until the new one is whole. */
static void test_discard(void **state)
{
    const struct npy_array a = array("a", 'u', 1, "abc", 3), b = array("b", 'u', 1, "xyz", 3);
    struct npz_writer *w;
    struct npy_file f;
    struct why why = {""};
    (void)state;
    write_good("x.npz", &a, 1);
    assert_int_equal(npz_writer_open(path_of("x.npz"), &w, NULL), STATUS_OK);
    assert_int_equal(npz_writer_add(w, &b, NULL), STATUS_OK);
    assert_int_equal(npz_writer_close(w, false, NULL), STATUS_OK);
    assert_int_equal(count_files(), 1);
    assert_int_equal(npz_writer_open(path_of("x.npz"), &w, NULL), STATUS_OK);
    assert_int_equal(npz_writer_close(w, true, &why), STATUS_BAD_INPUT);
    assert_non_null(strstr(why.text, "x.npz: no arrays"));
    assert_int_equal(npz_writer_close(NULL, true, NULL), STATUS_OK);
    assert_int_equal(count_files(), 1);
    assert_int_equal(npz_read(path_of("x.npz"), &f, NULL), STATUS_OK);
    assert_same(&a, npy_find(&f, "a"));
    npy_file_free(&f);
    write_good("x.npz", &b, 1);
    assert_int_equal(npz_read(path_of("x.npz"), &f, NULL), STATUS_OK);
    assert_null(npy_find(&f, "a"));
    assert_same(&b, npy_find(&f, "b"));
    npy_file_free(&f);
    unlink(path_of("x.npz"));
}

static int setup(void **state)
{
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_fortran_order),
        cmocka_unit_test(test_big_endian),
        cmocka_unit_test(test_bad_headers),
        cmocka_unit_test(test_bad_preambles),
        cmocka_unit_test(test_header_limit),
        cmocka_unit_test(test_stored_and_deflated),
        cmocka_unit_test(test_bad_members),
        cmocka_unit_test(test_patched_archives),
        cmocka_unit_test(test_zip64),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_directory),
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_get_int),
        cmocka_unit_test(test_get_real),
        cmocka_unit_test(test_get_text),
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_numpy_bytes),
        cmocka_unit_test(test_same_bytes),
        cmocka_unit_test(test_bad_adds),
        cmocka_unit_test(test_bad_writes),
        cmocka_unit_test(test_bad_rename),
        cmocka_unit_test(test_discard),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
