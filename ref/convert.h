/* convert: fp16 and bf16 to and from fp32, exact to IEEE 754 (round to nearest even, subnormals, infinities,
 * NaN), and the 8-bit types of the OCP OFP8 specification (e4m3 without infinities, e5m2). */
#ifndef TANDEM_REF_CONVERT_H
#define TANDEM_REF_CONVERT_H

#include "sched/batch.h"

#include <stddef.h>
#include <string.h>

static inline float convert_bits_to_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t convert_float_to_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float convert_bf16_to_float(uint16_t h)
{
    return convert_bits_to_float((uint32_t)h << 16);
}

/* An fp16's exponent and fraction, moved into an fp32's place, are too small by 2^112; the product with it is
 * exact and turns subnormals into normals. Infinity and NaN get the fp32 exponent instead. No branches, so
 * loops vectorise. */
static inline float convert_fp16_to_float(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = (uint32_t)(h & 0x7fff) << 13;
    const uint32_t finite = convert_float_to_bits(convert_bits_to_float(magnitude) * 0x1p112f);
    return convert_bits_to_float(sign | (magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : finite));
}

/* e4m3: bias 7, S.1111.111 is NaN, the largest value 448. Moved into an fp32's place it is too small by
 * 2^120. */
static inline float convert_e4m3_to_float(uint8_t c)
{
    const uint32_t sign = (uint32_t)(c & 0x80) << 24, magnitude = (uint32_t)(c & 0x7f) << 20;
    const uint32_t finite = convert_float_to_bits(convert_bits_to_float(magnitude) * 0x1p120f);
    return convert_bits_to_float(sign | (magnitude == 0x07f00000u ? 0x7fc00000u : finite));
}

/* e5m2 is the upper half of an fp16. */
static inline float convert_e5m2_to_float(uint8_t c)
{
    return convert_fp16_to_float((uint16_t)(c << 8));
}

/* To nearest even; beyond the largest finite value (448, 57344), infinities included, they saturate, as GPUs'
 * cvt.rn.satfinite does; NaN stays NaN. */
uint8_t convert_float_to_e4m3(float x);
uint8_t convert_float_to_e5m2(float x);

uint16_t convert_float_to_bf16(float x);
uint16_t convert_float_to_fp16(float x);

/* n consecutive elements of a dtype, from src + offset elements, to fp32. */
void convert_to_float(enum dtype type, const void *src, size_t offset, size_t n, float *dst);

/* One fp32 rounded to the dtype and stored at dst + offset elements. */
void convert_store(enum dtype type, float x, void *dst, size_t offset);

#endif
