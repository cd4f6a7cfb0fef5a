// SPDX-License-Identifier: Apache-2.0
// A tool for NVTX_INJECTION64_PATH: one line for each range and mark, "PROCESS DOMAIN push|pop|mark NAME", into the file
// AISP_NVTX_LOG.
#include <fcntl.h>
#include <nvtx3/nvToolsExt.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace {

void write_line(nvtxDomainHandle_t domain, const std::string& what) {
  const char* file = std::getenv("AISP_NVTX_LOG");
  const int log = file == nullptr ? -1 : open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (log < 0) return;
  const std::string name = domain == nullptr ? "-" : *reinterpret_cast<std::string*>(domain);
  const std::string line = std::to_string(getpid()) + ' ' + name + ' ' + what + '\n';
  [[maybe_unused]] const ssize_t written = write(log, line.data(), line.size());
  close(log);
}

nvtxDomainHandle_t create_domain(const char* name) { return reinterpret_cast<nvtxDomainHandle_t>(new std::string{name}); }

int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  write_line(domain, std::string{"push "} + event->message.ascii);
  return 0;
}
int pop(nvtxDomainHandle_t domain) {
  write_line(domain, "pop -");
  return 0;
}
void mark(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  write_line(domain, std::string{"mark "} + event->message.ascii);
}

}  // namespace

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t export_table) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(export_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable functions = nullptr;
  unsigned int count = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &functions, &count) == 0) return 0;
  *functions[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(create_domain);
  *functions[NVTX_CBID_CORE2_DomainRangePushEx] = reinterpret_cast<NvtxFunctionPointer>(push);
  *functions[NVTX_CBID_CORE2_DomainRangePop] = reinterpret_cast<NvtxFunctionPointer>(pop);
  *functions[NVTX_CBID_CORE2_DomainMarkEx] = reinterpret_cast<NvtxFunctionPointer>(mark);
  return 1;
}
