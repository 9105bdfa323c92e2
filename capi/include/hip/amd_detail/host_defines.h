/* HIP's words for the parts of a source that the host or a GPU compiles. HIP has a header of this name. */
#ifndef HSAVMM_HIP_HOST_DEFINES_H
#define HSAVMM_HIP_HOST_DEFINES_H

#if !defined(__HIP__)
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __forceinline__ inline
#endif

#endif
