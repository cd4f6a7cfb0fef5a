// SPDX-License-Identifier: Apache-2.0
#include "report/roofline.hpp"

namespace aisp::report {

// Every rule begins with the class of the picture, so that none reaches beyond it inside a page.
const char* const roofline_style = R"(
.roofline text{font:12px system-ui,sans-serif;fill:#1c2330}
.roofline .back{fill:#ffffff}.roofline .title{font-size:18px;font-weight:600}.roofline .small,.roofline .tick{fill:#566073}
.roofline .axis{fill:#1c2330;font-weight:600}.roofline .grid{stroke:#e3e7ee}.roofline .frame{fill:none;stroke:#8a93a5}
.roofline .roof{stroke:#1c2330;stroke-width:2;fill:none}.roofline .rooflabel{font-weight:600}
.roofline .baseline{fill:#ffffff;stroke:#b04a00;stroke-width:2}.roofline .optimized{fill:#8db7e8}.roofline .lesson{fill:#0b5cad}
.roofline .library{fill:#7a3fb0}.roofline .arrow{stroke:#0b5cad;stroke-width:1.5;stroke-opacity:.55}.roofline .head{fill:#0b5cad}
.roofline .leader{stroke:#8a93a5;stroke-width:1}
.roofline .curve{fill:none;stroke:#8a93a5;stroke-width:1.5;stroke-dasharray:5 3}
.roofline .label,.roofline .rooflabel{paint-order:stroke;stroke:#ffffff;stroke-width:3px;stroke-linejoin:round}
@media (prefers-color-scheme:dark){
.roofline text{fill:#e7ebf3}
.roofline .back{fill:#151a24}.roofline .small,.roofline .tick{fill:#a3adbf}.roofline .axis{fill:#e7ebf3}
.roofline .grid{stroke:#2a3140}.roofline .frame{stroke:#6b7588}
.roofline .roof{stroke:#e7ebf3}
.roofline .baseline{fill:#151a24;stroke:#ff9d52}.roofline .optimized{fill:#3f6ea5}.roofline .lesson{fill:#6bb3ff}.roofline .library{fill:#c79bf2}
.roofline .arrow{stroke:#6bb3ff}.roofline .head{fill:#6bb3ff}.roofline .leader{stroke:#6b7588}
.roofline .label,.roofline .rooflabel{stroke:#151a24}
}
)";

}  // namespace aisp::report
