// SPDX-License-Identifier: Apache-2.0
// Compiled into libaisp_cutlass.so as well, which links nothing of aisp.
#include <aisp/check.hpp>

#include <atomic>
#include <string>
#include <utility>

namespace aisp {
namespace {

std::string describe(cudaError_t status, const std::source_location& where) {
  const std::string file = where.file_name();
  return std::string{cudaGetErrorName(status)} + ": " + cudaGetErrorString(status) + " (" + file.substr(file.rfind('/') + 1) +
         ":" + std::to_string(where.line()) + ")";
}

}  // namespace

struct Error::Text {
  std::string text;
  std::atomic<int> owners{1};
};

Error::Error(std::string_view text) : text_{new Text{std::string{text}}} {}
Error::Error(const Error& other) noexcept : std::exception{other}, text_{other.text_} { ++text_->owners; }
Error& Error::operator=(const Error& other) noexcept {
  Error copy{other};
  std::swap(text_, copy.text_);
  return *this;
}
Error::~Error() {
  if (--text_->owners == 0) delete text_;
}
const char* Error::what() const noexcept { return text_->text.c_str(); }

CudaError::CudaError(cudaError_t status, const std::source_location& where) : Error{describe(status, where)}, status_{status} {}

void throw_cuda_error(cudaError_t status, const std::source_location& where) { throw CudaError{status, where}; }

}  // namespace aisp
