// SPDX-License-Identifier: Apache-2.0
#include "base/system/crash_trace.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>

#include "base/system/files.hpp"

namespace aisp::base {
namespace {

// All that the handler uses stands here: it may allocate nothing and wait for nobody. glibc's backtrace() and dladdr() do both.
constexpr int most_frames = 48;
constexpr std::array signals = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

struct Frames {
  std::array<std::uintptr_t, most_frames> at{};
  int count = 0;
};

int report_to = -1;
std::array<char, 16384> line;
std::size_t length = 0;
std::array<char, 8192> map_text;  // of /proc/self/maps, piece by piece
volatile std::sig_atomic_t reporting = 0;

void put(char c) {
  if (length < line.size()) line[length++] = c;
}

void put(const char* text) {
  for (; *text != '\0'; ++text) put(*text);
}

void put_hex(std::uint64_t value) {
  std::array<char, 16> digits{};
  int count = 0;
  do {
    digits[static_cast<std::size_t>(count++)] = "0123456789abcdef"[value % 16];
    value /= 16;
  } while (value != 0);
  while (count > 0) put(digits[static_cast<std::size_t>(--count)]);
}

_Unwind_Reason_Code add_frame(_Unwind_Context* context, void* data) {
  Frames& frames = *static_cast<Frames*>(data);
  int is_exact = 0;
  const std::uintptr_t at = _Unwind_GetIPInfo(context, &is_exact);
  if (at == 0 || frames.count == most_frames) return _URC_END_OF_STACK;
  // A return address is behind the call, and may be of the next function.
  frames.at[static_cast<std::size_t>(frames.count++)] = is_exact != 0 ? at : at - 1;
  return _URC_NO_REASON;
}

std::uintptr_t place_of_crash(const void* context) {
  const auto* const state = static_cast<const ucontext_t*>(context);
#if defined(__x86_64__)
  return static_cast<std::uintptr_t>(state->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return static_cast<std::uintptr_t>(state->uc_mcontext.pc);
#else
  return 0;
#endif
}

std::uint64_t read_hex(const char*& text) {
  std::uint64_t value = 0;
  for (;; ++text) {
    const char c = *text;
    if (c >= '0' && c <= '9') value = value * 16 + static_cast<std::uint64_t>(c - '0');
    else if (c >= 'a' && c <= 'f') value = value * 16 + static_cast<std::uint64_t>(c - 'a' + 10);
    else return value;
  }
}

// "7f00-7f10 r-xp 00001000 fd:00 123   /lib/libc.so.6": whether it holds `address`, and then the file and the offset in it.
bool put_if_in(const char* mapping, std::uintptr_t address) {
  const char* text = mapping;
  const std::uint64_t begin = read_hex(text);
  if (*text != '-') return false;
  const std::uint64_t end = read_hex(++text);
  if (address < begin || address >= end) return false;
  const char* const permissions = std::strchr(text, ' ');
  const char* const offset = permissions != nullptr ? std::strchr(permissions + 1, ' ') : nullptr;
  const char* const file = offset != nullptr ? std::strchr(offset, '/') : nullptr;
  if (file == nullptr) return false;
  put('"');
  for (const char* c = file; *c != '\0'; ++c) put(*c < ' ' || *c == '"' || *c == '\\' || *c > '~' ? '?' : *c);
  put("+0x");
  text = offset + 1;
  put_hex(address - begin + read_hex(text));
  put('"');
  return true;
}

// Looks the address up in what is mapped now: libraries come and go.
bool put_place(std::uintptr_t address) {
  const int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (maps < 0) return false;
  std::size_t held = 0;
  bool found = false;
  for (;;) {
    const ssize_t got = read(maps, map_text.data() + held, map_text.size() - held - 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    held += static_cast<std::size_t>(got);
    map_text[held] = '\0';
    char* begin = map_text.data();
    for (char* end = std::strchr(begin, '\n'); end != nullptr && !found; end = std::strchr(begin, '\n')) {
      *end = '\0';
      found = put_if_in(begin, address);
      begin = end + 1;
    }
    held -= static_cast<std::size_t>(begin - map_text.data());
    if (found || held + 1 >= map_text.size()) break;
    std::memmove(map_text.data(), begin, held);
  }
  close(maps);
  return found;
}

void report(int number, siginfo_t*, void* context) {
  // By another thread, or in here: it ends by that one.
  if (reporting == 0) {
    reporting = 1;
    Frames frames;
    _Unwind_Backtrace(add_frame, &frames);
    const std::uintptr_t crash = place_of_crash(context);
    int first = 0;
    while (first < frames.count && frames.at[static_cast<std::size_t>(first)] != crash) ++first;
    if (first == frames.count) first = 0;
    length = 0;
    put("\n{\"crash\":[");
    bool any = false;
    for (int i = first; i < frames.count && length + 4096 < line.size(); ++i) {
      const std::size_t before = length;
      if (any) put(',');
      if (put_place(frames.at[static_cast<std::size_t>(i)])) any = true;
      else length = before;
    }
    put("]}\n");
    write_all(report_to, {line.data(), length});
  }
  // The handler was taken away when it was called, so this ends the process, now or when the handler returns.
  raise(number);
}

}  // namespace

void trace_crashes(int descriptor) {
  report_to = descriptor;
  // The unwinder's tables are looked up here for the first time, where that may take locks.
  Frames none;
  _Unwind_Backtrace(add_frame, &none);
  constexpr std::size_t stack_bytes = std::size_t{64} << 10;
  void* const memory = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory != MAP_FAILED) {
    stack_t stack{};
    stack.ss_sp = memory;
    stack.ss_size = stack_bytes;
    sigaltstack(&stack, nullptr);
  }
  struct sigaction action {};
  action.sa_sigaction = report;
  action.sa_flags = static_cast<int>(SA_SIGINFO | SA_ONSTACK | SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  for (const int number : signals) sigaction(number, &action, nullptr);
}

}  // namespace aisp::base
