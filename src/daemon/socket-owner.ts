import { readdir, readFile, readlink, stat } from 'node:fs/promises'

/** Maximum number of links of all processes together: one process may have a million descriptors. */
const LINKS_MAX = 1 << 16
/** The capability's number in linux/capability.h. */
const CAP_NET_ADMIN = 12n

/**
 * Tests whether a process that has this socket open has CAP_NET_ADMIN in the user namespace of this process. Undefined
 * if /proc does not show the process: it is in another PID namespace, has more privileges, or belongs to a user that is
 * not in `users`.
 */
export async function ownerIsAdmin(inode: number, users: readonly number[]): Promise<boolean | undefined> {
  const wanted = `socket:[${inode}]`
  let left = LINKS_MAX
  let isSeen = false
  for (const pid of await list('/proc')) {
    const { uid } = (/^\d+$/.test(pid) && (await stat(`/proc/${pid}`).catch(gone))) || {}
    if (uid === undefined || !users.includes(uid)) continue
    const fds = await list(`/proc/${pid}/fd`)
    left -= fds.length
    if (left < 0) return undefined
    const links = await Promise.all(fds.map(fd => readlink(`/proc/${pid}/fd/${fd}`).catch(gone)))
    if (!links.includes(wanted)) continue
    if (await isAdmin(pid)) return true
    isSeen = true
  }
  return isSeen ? false : undefined
}

async function list(folder: string): Promise<readonly string[]> {
  return (await readdir(folder).catch(gone)) ?? []
}

/** Ignores errors: processes may end during the read, and those with more privileges are not readable. */
function gone(): undefined {
  return undefined
}

/** Compares user namespaces, too: any user may have all capabilities in a user namespace of their own. */
async function isAdmin(pid: string): Promise<boolean> {
  const [theirs, ours] = await Promise.all(
    [pid, 'self'].map(each => readlink(`/proc/${each}/ns/user`).catch(gone)),
  )
  const status = (await readFile(`/proc/${pid}/status`, 'latin1').catch(gone)) ?? ''
  const [, effective = '0'] = /^CapEff:\s*([0-9a-f]+)$/m.exec(status) ?? []
  return theirs === ours && ((BigInt(`0x${effective}`) >> CAP_NET_ADMIN) & 1n) === 1n
}
