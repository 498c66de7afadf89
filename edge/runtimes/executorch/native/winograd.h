// Convolutions of 3 x 3 with stride 1 in fewer products; see winograd.cpp.
#pragma once

#include "convolution.h"

namespace apportion {

// Whether its three parts are faster so: enough channels for whole vectors, enough pixels for whole tiles.
bool suits_winograd(const Geometry& g);

void winograd_forward(const Geometry& g, const float* x, const float* w, const float* bias, float* y);
void winograd_input_gradient(const Geometry& g, const float* dy, const float* w, float* dx);
void winograd_weight_gradient(const Geometry& g, const float* x, const float* dy, float* dw);

}  // namespace apportion
