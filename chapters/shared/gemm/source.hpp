// SPDX-License-Identifier: Apache-2.0
// The engine's kernel as text that NVRTC compiles: a pair has no instance of it before it runs. The host's types are the same
// ones: Prepared::Kernel is what the compiled kernel is loaded as.
#pragma once
#include <aisp/libraries/nvrtc.hpp>

#include <string>

#include "shape.cuh"

namespace aisp::gemm {

// As C++ names them inside the engine's namespace.
struct TypeNames {
  std::string a, b, mainloop = "InTensorCores", schedule = "Bands", epilogue = "Identity", store = "TmaStore<>";
};

inline std::string text_of(const Shape& shape) {
  const auto number = [](const char* name, int value) { return std::string{"."} + name + " = " + std::to_string(value) + ", "; };
  return "Shape{" + number("tile_m", shape.tile_m) + number("tile_n", shape.tile_n) + number("stages", shape.stages) +
         number("consumers", shape.consumers) + ".pingpong = " + (shape.pingpong ? "true, " : "false, ") +
         ".cluster = " + std::to_string(shape.cluster) + "}";
}

// `declarations`: of types of the pair's own, in the engine's namespace.
inline KernelSource kernel_source(const std::string& name, const Shape& shape, const TypeNames& types,
                                  const std::string& declarations = {}) {
  const std::string config = "Config<" + types.a + ", " + types.b + ", " + types.mainloop + ", " + text_of(shape) + ">";
  return {.name = name,
          .text = "#include \"gemm/kernel.cuh\"\nnamespace aisp::gemm {\n" + declarations + "using Compiled = " + config +
                  ";\nusing CompiledSchedule = " + types.schedule + ";\nusing CompiledEpilogue = " + types.epilogue +
                  ";\nusing CompiledStore = " + types.store + ";\n}  // namespace aisp::gemm\nusing namespace aisp::gemm;\n",
          .kernel = "gemm_kernel<Compiled, CompiledSchedule, CompiledEpilogue, CompiledStore>"};
}

}  // namespace aisp::gemm
