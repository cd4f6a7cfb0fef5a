// SPDX-License-Identifier: Apache-2.0
#include "pair/running_variant.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace aisp::pair {
namespace {

char own_page[running_variant_bytes];
char* page = own_page;

char* map(int descriptor) {
  void* const mapped = ::mmap(nullptr, running_variant_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<char*>(mapped);
}

std::string text_of(const char* from) { return {from, ::strnlen(from, running_variant_bytes)}; }

}  // namespace

bool share_running_variant(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return false;
  char* const shared = map(descriptor);
  ::close(descriptor);
  if (shared == nullptr) return false;
  page = shared;
  return true;
}

void note_running_variant(std::string_view name) {
  const std::size_t count = std::min(name.size(), running_variant_bytes - 1);
  std::copy_n(name.begin(), count, page);
  page[count] = '\0';
}

std::string running_variant() { return text_of(page); }

RunningVariantPage::RunningVariantPage() : descriptor_{::memfd_create("aisp-running-variant", MFD_CLOEXEC)} {
  if (descriptor_ < 0) return;
  if (::ftruncate(descriptor_, running_variant_bytes) == 0) page_ = map(descriptor_);
}

RunningVariantPage::~RunningVariantPage() {
  if (page_ != nullptr) ::munmap(page_, running_variant_bytes);
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::string RunningVariantPage::path() const {
  if (page_ == nullptr) return {};
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(descriptor_);
}

std::string RunningVariantPage::name() const { return page_ == nullptr ? std::string{} : text_of(page_); }

}  // namespace aisp::pair
