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

/* An 8-bit type: fraction bits, exponent bias, its codes of the largest finite value and of NaN. */
struct fp8 {
    int fraction, bias;
    uint8_t largest, nan;
};

/* Normals are rebiased and rounded; below the least normal, 2^(1 - bias), adding a power of two whose last
 * place is the type's last place lets the hardware round. */
static uint8_t float_to_fp8(float x, struct fp8 t)
{
    const uint32_t bits = convert_float_to_bits(x), magnitude = bits & 0x7fffffffu;
    const uint8_t sign = (uint8_t)((bits >> 24) & 0x80);
    const int drop = 23 - t.fraction;
    uint32_t code;
    if (magnitude > 0x7f800000u) return sign | t.nan;
    if (magnitude < (uint32_t)(128 - t.bias) << 23) {
        const float step = convert_bits_to_float((uint32_t)(151 - t.bias - t.fraction) << 23);
        code = convert_float_to_bits(convert_bits_to_float(magnitude) + step) - convert_float_to_bits(step);
    } else {
        code = round_bits(magnitude - ((uint32_t)(127 - t.bias) << 23), drop);
    }
    return sign | (uint8_t)(code > t.largest ? t.largest : code);
}

uint8_t convert_float_to_e4m3(float x)
{
    return float_to_fp8(x, (struct fp8){3, 7, 0x7e, 0x7f});
}

uint8_t convert_float_to_e5m2(float x)
{
    return float_to_fp8(x, (struct fp8){2, 15, 0x7b, 0x7e});
}

void convert_to_float(enum dtype type, const void *src, size_t offset, size_t n, float *dst)
{
    const uint16_t *half = (const uint16_t *)src + offset;
    const uint8_t *byte = (const uint8_t *)src + offset;
    switch (type) {
    case DTYPE_FP16:
        for (size_t i = 0; i < n; i++)
            dst[i] = convert_fp16_to_float(half[i]);
        break;
    case DTYPE_BF16:
        for (size_t i = 0; i < n; i++)
            dst[i] = convert_bf16_to_float(half[i]);
        break;
    case DTYPE_FP8_E4M3:
        for (size_t i = 0; i < n; i++)
            dst[i] = convert_e4m3_to_float(byte[i]);
        break;
    case DTYPE_FP8_E5M2:
        for (size_t i = 0; i < n; i++)
            dst[i] = convert_e5m2_to_float(byte[i]);
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
    case DTYPE_FP8_E4M3:
        ((uint8_t *)dst)[offset] = convert_float_to_e4m3(x);
        break;
    case DTYPE_FP8_E5M2:
        ((uint8_t *)dst)[offset] = convert_float_to_e5m2(x);
        break;
    default:
        ((float *)dst)[offset] = x;
        break;
    }
}
