/** One number of the kernel that is read and written as a file. */
export interface Sysctl {
  readonly name: string
  /** From the root of the file system. */
  readonly path: string
}

export interface SysctlWrite extends Sysctl {
  readonly value: number
  readonly before: number
}

/** What is wanted and not written. */
export interface SysctlLeft {
  readonly name: string
  readonly wanted: number
  readonly reason: /** It has that value. */
    | 'equal'
    /** Somebody made it larger. */
    | 'larger'
    /** The kernel has no such file. */
    | 'missing'
  /** Undefined when it is missing. */
  readonly value: number | undefined
}
