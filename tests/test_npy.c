/* .npy and .npz: hand-written bytes in, arrays out; what lies is refused with a reason; what is written is read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/npy.h"
#include "lab/rng.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char directory[] = "/tmp/tandem-npy-XXXXXX";

static const char *path_of(const char *name)
{
    static char path[200];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static void write_file(const char *name, const void *data, size_t n)
{
    FILE *f = fopen(path_of(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* version, header text and data as one .npy file. */
static void write_npy(int version, const char *header, const void *data, size_t n)
{
    unsigned char bytes[4096];
    const size_t length = strlen(header), start = version == 1 ? 10 : 12;
    memcpy(bytes, "\x93NUMPY", 6);
    bytes[6] = (unsigned char)version;
    bytes[7] = 0;
    bytes[8] = (unsigned char)(length & 255);
    bytes[9] = (unsigned char)(length >> 8);
    bytes[10] = bytes[11] = 0;
    memcpy(bytes + start, header, length);
    memcpy(bytes + start + length, data, n);
    write_file("a.npy", bytes, start + length + n);
}

static void read_or_fail(struct npy_file *f)
{
    struct why why = {""};
    if (npy_read(path_of("a.npy"), f, &why) != STATUS_OK) fail_msg("%s", why.text);
    assert_int_equal(f->n, 1);
    assert_string_equal(f->arrays[0].name, "a");
}

static void test_versions_and_spacing(void **state)
{
    static const char *const headers[] = {
        "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }        \n",
        "{\"shape\": ( 2 ,3 ) , \"fortran_order\" :False,\"descr\":\"<i4\"}",
        "{'descr': '<i4', 'fortran_order': False, 'shape': (2L, 3L)}",
        "{'descr': '=i4', 'fortran_order': False, 'shape': (2, 3,)}",
    };
    static const int32_t data[] = {1, -2, 3, 4, 5, 6};
    (void)state;
    for (int version = 1; version <= 3; version++)
        for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
            struct npy_file f;
            int64_t x;
            write_npy(version, headers[i], data, sizeof data);
            read_or_fail(&f);
            assert_int_equal(f.arrays[0].n_dims, 2);
            assert_true(f.arrays[0].dim[0] == 2 && f.arrays[0].dim[1] == 3);
            assert_int_equal(npy_get_int(&f.arrays[0], 1, -5, 5, &x, NULL), STATUS_OK);
            assert_int_equal(x, -2);
            assert_int_equal(npy_get_int(&f.arrays[0], 5, -5, 5, &x, NULL), STATUS_BAD_INPUT);
            assert_int_equal(npy_get_int(&f.arrays[0], 6, -9, 9, &x, NULL), STATUS_BAD_INPUT);
            npy_free(&f);
            npy_free(&f);
        }
}

/* Element [i][j][k] = 100 i + 10 j + k, first index fastest in the file. */
static void test_fortran_order(void **state)
{
    int32_t data[24];
    struct npy_file f;
    (void)state;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3; j++)
            for (int k = 0; k < 4; k++)
                data[i + 2 * j + 6 * k] = 100 * i + 10 * j + k;
    write_npy(1, "{'descr': '<i4', 'fortran_order': True, 'shape': (2, 3, 4)}", data, sizeof data);
    read_or_fail(&f);
    for (int i = 0; i < 24; i++)
        assert_int_equal(((int32_t *)f.arrays[0].data)[i], 100 * (i / 12) + 10 * (i / 4 % 3) + i % 4);
    npy_free(&f);
}

static void test_types(void **state)
{
    static const unsigned char big[] = {0x00, 0x01, 0xff, 0xfe}, half[] = {0x00, 0xc0, 0x01, 0x00};
    static const double wide[] = {-1.5, NAN};
    struct npy_file f;
    double x;
    char text[8];
    (void)state;
    write_npy(1, "{'descr': '>i2', 'fortran_order': False, 'shape': (2,)}", big, 4);
    read_or_fail(&f);
    assert_int_equal(npy_get_real(&f.arrays[0], 1, &x, NULL), STATUS_OK);
    assert_true(x == -2);
    npy_free(&f);
    write_npy(1, "{'descr': '<f2', 'fortran_order': False, 'shape': (2,)}", half, 4);
    read_or_fail(&f);
    assert_int_equal(npy_get_real(&f.arrays[0], 0, &x, NULL), STATUS_OK);
    assert_true(x == -2);
    npy_get_real(&f.arrays[0], 1, &x, NULL);
    assert_true(x == 0x1p-24);
    npy_free(&f);
    write_npy(1, "{'descr': '<f8', 'fortran_order': False, 'shape': (2,)}", wide, 16);
    read_or_fail(&f);
    npy_get_real(&f.arrays[0], 0, &x, NULL);
    assert_true(x == -1.5);
    int64_t whole;
    assert_int_equal(npy_get_int(&f.arrays[0], 0, -9, 9, &whole, NULL), STATUS_BAD_INPUT);
    assert_int_equal(npy_get_int(&f.arrays[0], 1, -9, 9, &whole, NULL), STATUS_BAD_INPUT);
    npy_free(&f);
    write_npy(1, "{'descr': '<U3', 'fortran_order': False, 'shape': ()}", "N\0\0\0H\0\0\0D\0\0", 12);
    read_or_fail(&f);
    assert_int_equal(npy_get_text(&f.arrays[0], text, sizeof text, NULL), STATUS_OK);
    assert_string_equal(text, "NHD");
    assert_int_equal(npy_get_text(&f.arrays[0], text, 3, NULL), STATUS_BAD_INPUT);
    npy_free(&f);
    write_npy(1, "{'descr': '|b1', 'fortran_order': False, 'shape': (0, 5)}", "", 0);
    read_or_fail(&f);
    assert_int_equal(f.arrays[0].n, 0);
    npy_free(&f);
    write_npy(1, "{'descr': '|V2', 'fortran_order': False, 'shape': (1,)}", "ab", 2);
    read_or_fail(&f);
    assert_int_equal(npy_get_real(&f.arrays[0], 0, &x, NULL), STATUS_BAD_INPUT);
    npy_free(&f);
}

static void test_lies(void **state)
{
    static const struct {
        const char *header;
        size_t bytes;
    } lies[] = {
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,)}", 8},      /* cut short */
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", 8},      /* more than said */
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,)}", 8},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", 8},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", 8},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}", 8},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2)}x", 8},
        {"{'descr': '<f4', 'fortran_order': False}", 8},
        {"{'descr': '<f4', 'shape': (2,)}", 8},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", 8},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", 8},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}", 8},
        {"{'descr': '<f3', 'fortran_order': False, 'shape': (1,)}", 3},
        {"{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (2,)}", 8},
        {"{'descr': '<f4', 'fortran_order': Maybe, 'shape': (2,)}", 8},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,2)}", 8},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,", 8},
        {"", 8},
    };
    struct npy_file f;
    struct why why;
    (void)state;
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        write_npy(1, lies[i].header, "12345678", lies[i].bytes);
        memset(&why, 0, sizeof why);
        assert_int_equal(npy_read(path_of("a.npy"), &f, &why), STATUS_BAD_INPUT);
        assert_true(strlen(why.text) > 0 && f.arrays == NULL);
    }
    write_npy(4, "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", "12345678", 8);
    assert_int_equal(npy_read(path_of("a.npy"), &f, &why), STATUS_BAD_INPUT);
    write_file("a.npy", "PK\003\004 not an archive", 20);
    assert_int_equal(npy_read(path_of("a.npy"), &f, &why), STATUS_BAD_INPUT);
    write_file("a.npy", "", 0);
    assert_int_equal(npy_read(path_of("a.npy"), &f, &why), STATUS_BAD_INPUT);
    assert_int_equal(npy_read(path_of("none.npy"), &f, &why), STATUS_IO);
    assert_int_equal(npy_read(directory, &f, &why), STATUS_IO);
}

/* The array of a name, some numbers in it. */
static struct npy_array example(const char *name, char kind, int32_t item_bytes, int64_t rows, void *data)
{
    struct npy_array a = {.kind = kind, .item_bytes = item_bytes, .n_dims = 2, .dim = {rows, 3}, .data = data};
    snprintf(a.name, sizeof a.name, "%s", name);
    a.n = (size_t)rows * 3;
    a.bytes = a.n * (size_t)item_bytes;
    return a;
}

static void slurp(const char *name, char **data, long *n)
{
    FILE *f = fopen(path_of(name), "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = ftell(f);
    rewind(f);
    *data = malloc((size_t)*n + 1);
    assert_int_equal(fread(*data, 1, (size_t)*n, f), *n);
    fclose(f);
}

static void test_round_trip(void **state)
{
    double numbers[300];
    struct npy_array arrays[4];
    struct npy_file f;
    struct why why = {""};
    char *first, *second;
    long n_first, n_second;
    (void)state;
    for (int i = 0; i < 300; i++)
        numbers[i] = i / 7.0;
    arrays[0] = example("wide", 'f', 8, 100, numbers);
    arrays[1] = example("empty", 'u', 2, 0, numbers);
    arrays[2] = example("narrow", 'i', 1, 5, numbers);
    arrays[3] = example("scalar", 'f', 8, 1, numbers + 9);
    arrays[3].n_dims = 0;
    arrays[3].n = 1;
    arrays[3].bytes = 8;
    assert_int_equal(npz_write(path_of("a.npz"), arrays, 4, &why), STATUS_OK);
    slurp("a.npz", &first, &n_first);
    sleep(2); /* an archive's clock ticks every other second */
    assert_int_equal(npz_write(path_of("a.npz"), arrays, 4, &why), STATUS_OK);
    slurp("a.npz", &second, &n_second);
    assert_int_equal(n_first, n_second);
    assert_memory_equal(first, second, (size_t)n_first);
    assert_int_equal(npy_read(path_of("a.npz"), &f, &why), STATUS_OK);
    assert_int_equal(f.n, 4);
    for (int i = 0; i < 4; i++) {
        const struct npy_array *a = npy_find(&f, arrays[i].name);
        assert_non_null(a);
        assert_true(a->kind == arrays[i].kind && a->n == arrays[i].n && a->n_dims == arrays[i].n_dims);
        assert_memory_equal(a->data, arrays[i].data, a->bytes);
        assert_int_equal((uintptr_t)a->data % 64, 0);
    }
    assert_null(npy_find(&f, "none"));
    npy_free(&f);
    arrays[1] = arrays[0]; /* a name twice: refused, the old file stays */
    assert_int_equal(npz_write(path_of("a.npz"), arrays, 2, &why), STATUS_IO);
    assert_int_equal(npy_read(path_of("a.npz"), &f, &why), STATUS_OK);
    assert_int_equal(f.n, 4);
    npy_free(&f);
    free(first);
    free(second);
}

static void test_unwritable(void **state)
{
    double numbers[3] = {0};
    const struct npy_array a = example("x", 'f', 8, 1, numbers);
    struct why why = {""};
    (void)state;
    assert_int_equal(npz_write(path_of("no/such/a.npz"), &a, 1, &why), STATUS_IO);
    assert_true(strlen(why.text) > 0);
    mkdir(path_of("dir.npz"), 0700);
    assert_int_equal(npz_write(path_of("dir.npz"), &a, 1, &why), STATUS_IO);
    char command[300];
    snprintf(command, sizeof command, "ls %s | grep -q tmp", directory);
    assert_int_not_equal(system(command), 0); /* nothing half-written stays */
}

/* Flipped bytes and cut ends: an error or an array, never a crash. */
static void test_damage(void **state)
{
    double numbers[300] = {0};
    const struct npy_array a = example("x", 'f', 8, 100, numbers);
    struct rng r = {5};
    struct why why = {""};
    char *bytes;
    long n;
    (void)state;
    assert_int_equal(npz_write(path_of("b.npz"), &a, 1, &why), STATUS_OK);
    slurp("b.npz", &bytes, &n);
    for (int i = 0; i < 500; i++) {
        struct npy_file f;
        const long at = (long)rng_below(&r, (uint64_t)n), end = i % 3 ? n : at;
        const char was = bytes[at];
        bytes[at] = (char)(bytes[at] ^ (1 << rng_below(&r, 8)));
        write_file("c.npz", bytes, (size_t)end);
        bytes[at] = was;
        if (npy_read(path_of("c.npz"), &f, &why) == STATUS_OK) npy_free(&f);
    }
    free(bytes);
}

static int make_directory(void **state)
{
    (void)state;
    return mkdtemp(directory) ? 0 : 1;
}

static int remove_directory(void **state)
{
    char command[300];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", directory);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_versions_and_spacing), cmocka_unit_test(test_fortran_order),
        cmocka_unit_test(test_types),                cmocka_unit_test(test_lies),
        cmocka_unit_test(test_round_trip),           cmocka_unit_test(test_unwritable),
        cmocka_unit_test(test_damage),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
