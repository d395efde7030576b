import { readlink } from 'node:fs/promises'
import { MODES } from '../modes/registry.ts'

/** The locks that make a proxy the only one of its name: docs/decisions/0021. */
export interface Instance {
  /** Name of the lock (takeLock): one daemon for each proxy name, whatever the mode. */
  readonly lock: string
  /** A lock for objects whose names two proxies may share. */
  readonly objectsLock: string | undefined
  /** The reason why a second proxy with the same `objectsLock` is refused. */
  readonly collision: string | undefined
}

/**
 * Gives the locks of a proxy. `name` is the value of --service-proxy-name, undefined for the unnamed proxy. A DNS label
 * contains no dot and no slash, so that each name has a lock of its own.
 */
export function instanceOf(name: string | undefined): Instance {
  if (name === undefined) return { lock: LOCK_NAME, objectsLock: undefined, collision: undefined }
  const lock = MODES.find(mode => mode.lock !== undefined)?.lock
  return { lock: `${LOCK_NAME}/${name}`, objectsLock: lock?.of(name), collision: lock?.taken }
}

const LOCK_NAME = 'kprobe/kube-proxy'

/** Gives the network namespace of a process, by its folder in /proc; undefined if it is not readable. */
export async function networkNamespace(folder = '/proc/self'): Promise<string | undefined> {
  try {
    return await readlink(`${folder}/ns/net`)
  } catch {
    return undefined
  }
}
