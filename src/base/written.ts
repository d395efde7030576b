import type { EventsV1Event, V1NodeCondition, V1TokenReview } from '@kubernetes/client-node'

/** An object of client-node as it is in JSON, where times are text in RFC 3339. */
type Written<T> = T extends Date
  ? string
  : T extends readonly (infer E)[]
    ? readonly Written<E>[]
    : T extends object
      ? { readonly [K in keyof T]: Written<T[K]> }
      : T

/* The objects that kprobe writes to the API server. Those that it reads are unknown until they are parsed. */
export type WrittenEvent = Written<EventsV1Event>
export type WrittenNodeCondition = Written<V1NodeCondition>
export type WrittenTokenReview = Written<V1TokenReview>
