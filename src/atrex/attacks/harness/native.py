"""Native code that several attacks build on: a compiler call, and a hook on functions of loaded libraries."""

from __future__ import annotations

BUILD = """
import ctypes
import subprocess
import tempfile
from pathlib import Path


def build(source, *flags):
    folder = Path(tempfile.mkdtemp())
    (folder / "kernel.cpp").write_text(source)
    command = ["g++", "-O2", "-std=c++17", "-shared", "-fPIC", "kernel.cpp", "-o", "kernel.so", *flags]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "kernel.so"))
"""
"""Text of a candidate: `build(source, *flags)` gives the compiled library."""

HOOK = r"""
#include <cstdint>
#include <cstring>
#include <elf.h>
#include <initializer_list>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__aarch64__)
constexpr unsigned kJump = 1026, kData = 1025;
#else
constexpr unsigned kJump = 7, kData = 6;
#endif

struct Hook {
  const char* name;
  void* to;
  int slots;
};

static void redirect(Hook* hook, ElfW(Addr) base, const ElfW(Rela)* entries, size_t bytes, const ElfW(Sym)* symbols,
                     const char* names) {
  for (size_t i = 0; entries && i < bytes / sizeof(*entries); ++i) {
    const unsigned type = entries[i].r_info & 0xffffffffu;
    if (type != kJump && type != kData) continue;
    if (std::strcmp(names + symbols[entries[i].r_info >> 32].st_name, hook->name)) continue;
    auto slot = reinterpret_cast<void**>(base + entries[i].r_offset);
    const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE)), first = uintptr_t(slot) & ~(page - 1);
    if (mprotect(reinterpret_cast<void*>(first), 2 * page, PROT_READ | PROT_WRITE) &&
        mprotect(reinterpret_cast<void*>(first), page, PROT_READ | PROT_WRITE))
      continue;
    *slot = hook->to;
    ++hook->slots;
  }
}

static int visit(dl_phdr_info* info, size_t, void* data) {
  auto hook = static_cast<Hook*>(data);
  if (std::strstr(info->dlpi_name, "kernel.so")) return 0;  // this library keeps the real one
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    const ElfW(Sym)* symbols = nullptr;
    const ElfW(Rela)*jumps = nullptr, *datas = nullptr;
    const char* names = nullptr;
    size_t jump_bytes = 0, data_bytes = 0;
    const auto base = info->dlpi_addr;
    for (auto d = reinterpret_cast<const ElfW(Dyn)*>(base + info->dlpi_phdr[i].p_vaddr); d->d_tag != DT_NULL; ++d) {
      const auto at = d->d_un.d_ptr < base ? base + d->d_un.d_ptr : d->d_un.d_ptr;
      if (d->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(at);
      if (d->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(at);
      if (d->d_tag == DT_JMPREL) jumps = reinterpret_cast<const ElfW(Rela)*>(at);
      if (d->d_tag == DT_RELA) datas = reinterpret_cast<const ElfW(Rela)*>(at);
      if (d->d_tag == DT_PLTRELSZ) jump_bytes = d->d_un.d_val;
      if (d->d_tag == DT_RELASZ) data_bytes = d->d_un.d_val;
    }
    if (!symbols || !names) continue;
    redirect(hook, base, jumps, jump_bytes, symbols, names);
    redirect(hook, base, datas, data_bytes, symbols, names);
  }
  return 0;
}

// Every loaded library calls `to` where it would call the function `name`; how many places that were.
static int hook(const char* name, void* to) {
  Hook one{name, to, 0};
  dl_iterate_phdr(visit, &one);
  return one.slots;
}
"""
"""C++: `hook(name, to)` rewrites the import tables of all loaded libraries."""
