// The bytes of every body, known to both ends: word i of a period of 1 MiB is a mix of i.
#include <stdint.h>
#include <string.h>

#define PERIOD (1u << 20)

static void fill_pattern(unsigned char *to) {
  for (uint64_t i = 0; i < PERIOD / 8; i++) {
    uint64_t word = (i + 1) * 0xD1342543DE82EF95ull;
    word ^= word >> 29;
    memcpy(to + i * 8, &word, 8);
  }
}
