#include "compiler/rtc_describe.h"

#include <elf.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

// The text behind "BEFORE SYMBOL AFTER", or NULL.
static const char *find_behind(const char *log, const char *before, const char *symbol,
                               const char *after)
{
    char *wanted = mem_printf("%s%s%s", before, symbol, after);
    const char *at = strstr(log, wanted);
    if (at)
        at += strlen(wanted);
    free(wanted);
    return at;
}

// The number before `unit` on this line; 0 where it is not mentioned.
static unsigned long find_number(const char *line, const char *unit)
{
    const char *end = line + strcspn(line, "\n"), *at = strstr(line, unit);
    if (!at || at >= end)
        return 0;
    while (at > line && at[-1] == ' ')
        at--;
    while (at > line && at[-1] >= '0' && at[-1] <= '9')
        at--;
    return strtoul(at, NULL, 10);
}

// The section's name, where the image is whole up to there.
static const char *section_name(const uint8_t *image, size_t size, const Elf64_Shdr *names,
                                uint32_t at)
{
    if (names->sh_offset > size || names->sh_size > size - names->sh_offset || at >= names->sh_size)
        return "";
    const char *name = (const char *)image + names->sh_offset + at;
    return memchr(name, '\0', names->sh_size - at) ? name : "";
}

static bool is_constant_of(const char *name, const char *symbol)
{
    static const char prefix[] = ".nv.constant";
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return false;
    const char *dot = strchr(name + sizeof prefix - 1, '.');
    return !dot || strcmp(dot + 1, symbol) == 0; // a bank of the whole file, or of this kernel
}

// Newer versions of ptxas do not mention it.
static unsigned long sum_constant(const uint8_t *image, size_t size, const char *symbol)
{
    Elf64_Ehdr head;
    unsigned long sum = 0;
    if (size < sizeof head)
        return 0;
    memcpy(&head, image, sizeof head);
    if (memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_shentsize != sizeof(Elf64_Shdr) ||
        head.e_shoff > size || head.e_shnum > (size - head.e_shoff) / sizeof(Elf64_Shdr) ||
        head.e_shstrndx >= head.e_shnum)
        return 0;
    Elf64_Shdr names, section;
    memcpy(&names, image + head.e_shoff + head.e_shstrndx * sizeof names, sizeof names);
    for (unsigned i = 0; i < head.e_shnum; i++) {
        memcpy(&section, image + head.e_shoff + i * sizeof section, sizeof section);
        if (is_constant_of(section_name(image, size, &names, section.sh_name), symbol))
            sum += section.sh_size;
    }
    return sum;
}

char *rtc_describe(const char *log, const char *symbol, const void *image, size_t size)
{
    const char *frame = find_behind(log, "Function properties for ", symbol, "\n");
    const char *used = find_behind(log, "Compiling entry function '", symbol, "'");
    used = used ? strstr(used, "Used ") : NULL;
    if (!frame || !used)
        return NULL;
    return mem_printf(
        "registers=%lu spill_stores=%lu spill_loads=%lu shared=%lu stack=%lu constant=%lu",
        find_number(used, " registers"), find_number(frame, " bytes spill stores"),
        find_number(frame, " bytes spill loads"), find_number(used, " bytes smem"),
        find_number(frame, " bytes stack frame"), sum_constant(image, size, symbol));
}
