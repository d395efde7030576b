/**
 * A part of an object that cannot be honoured. The smallest unit is refused (one address, one port, one range) and
 * everything else of the object still goes in.
 */
export interface Refusal {
  /** Kind, namespace and name: `Service ns1/web`, `EndpointSlice ns1/web-abc`. */
  readonly object: string
  /** Path of the refused field: `spec.externalIPs[1]`. */
  readonly field: string
  /** The refused value as it was given, escaped and shortened for one line of text. */
  readonly value: string
  /** Why, and what would be accepted, as a sentence without a full stop. */
  readonly reason: string
}
