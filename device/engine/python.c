/* A decision as a built-in function of CPython: no argument is converted and nothing is copied, which would take longer
 * than a small policy. What is used of its stable ABI (limited API of 3.11) is declared here; the interpreter that loads
 * the library has it. Elsewhere the symbols are 0, and nobody calls this. */
#include "engine.h"
#include "format.h"

typedef struct object object;
struct buffer {                     /* Py_buffer */
    void *data;
    object *owner;
    ptrdiff_t bytes, item;
    int readonly, dimensions;
    char *format;
    ptrdiff_t *shape, *strides, *suboffsets;
    void *internal;
};
enum { C_CONTIGUOUS_WITH_FORMAT = 0x0004 | 0x0008 | 0x0010 | 0x0020 }; /* PyBUF_FORMAT | PyBUF_C_CONTIGUOUS */

#define WEAK __attribute__((weak))
extern WEAK int PyObject_GetBuffer(object *, struct buffer *, int flags);
extern WEAK void PyBuffer_Release(struct buffer *);
extern WEAK object *PyLong_FromLong(long);
extern WEAK void *PyCapsule_GetPointer(object *, const char *name);
extern WEAK void PyErr_SetString(object *, const char *);
extern WEAK object *PyExc_ValueError;

struct native_bound {               /* what the capsule points to */
    struct native *engine;
    float *outputs;
    size_t observation;             /* bytes */
};

/* decide(observation): METH_O; float32, C-contiguous. The index of the first largest output, 0 of a continuous policy. */
object *native_python_decide(object *self, object *observation);
object *native_python_decide(object *self, object *observation)
{
    const struct native_bound *bound = PyCapsule_GetPointer(self, "native");
    struct buffer view;
    if (!bound || PyObject_GetBuffer(observation, &view, C_CONTIGUOUS_WITH_FORMAT)) return 0;
    const int fits = (size_t)view.bytes == bound->observation && view.format && view.format[0] == 'f' && !view.format[1];
    const int choice = fits ? native_decide(bound->engine, view.data, bound->outputs) : 0;
    PyBuffer_Release(&view);
    if (fits) return PyLong_FromLong(choice);
    PyErr_SetString(PyExc_ValueError, "the observation is no float32 array of the policy's size, one row behind another.");
    return 0;
}
