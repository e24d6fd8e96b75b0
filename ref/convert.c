#include "ref/convert.h"

/* Rounds off the low `drop` bits of x to nearest even: adds just under half, plus one if the kept part is
 * odd. */
static uint32_t round_bits(uint32_t x, int drop)
{
    return (x + ((1u << (drop - 1)) - 1) + ((x >> drop) & 1)) >> drop;
}

uint16_t convert_float_to_bf16(float x)
{
    const uint32_t bits = convert_float_to_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x0040); /* NaN stays NaN, quiet */
    return (uint16_t)round_bits(bits, 16);
}

uint16_t convert_float_to_fp16(float x)
{
    const uint32_t bits = convert_float_to_bits(x), magnitude = bits & 0x7fffffffu;
    const uint16_t sign = (uint16_t)((bits >> 16) & 0x8000);
    if (magnitude > 0x7f800000u) return sign | 0x7e00;
    if (magnitude >= 0x477ff000u) return sign | 0x7c00; /* 65520 and above round to infinity */
    if (magnitude < 0x38800000u) {
        /* Subnormal: adding 0.5 puts the last fp16 place (2^-24) at the last fp32 place, and the hardware
         * rounds. */
        const float shifted = convert_bits_to_float(magnitude) + 0.5f;
        return sign | (uint16_t)(convert_float_to_bits(shifted) - convert_float_to_bits(0.5f));
    }
    return sign | (uint16_t)round_bits(magnitude - 0x38000000u, 13); /* rebias 127 -> 15; a carry is right */
}

void convert_to_float(enum dtype type, const void *src, size_t offset, size_t n, float *dst)
{
    const uint16_t *half = (const uint16_t *)src + offset;
    switch (type) {
    case DTYPE_FP16:
        for (size_t i = 0; i < n; i++)
            dst[i] = convert_fp16_to_float(half[i]);
        break;
    case DTYPE_BF16:
        for (size_t i = 0; i < n; i++)
            dst[i] = convert_bf16_to_float(half[i]);
        break;
    default:
        memcpy(dst, (const float *)src + offset, n * sizeof *dst);
        break;
    }
}

void convert_store(enum dtype type, float x, void *dst, size_t offset)
{
    switch (type) {
    case DTYPE_FP16:
        ((uint16_t *)dst)[offset] = convert_float_to_fp16(x);
        break;
    case DTYPE_BF16:
        ((uint16_t *)dst)[offset] = convert_float_to_bf16(x);
        break;
    default:
        ((float *)dst)[offset] = x;
        break;
    }
}
