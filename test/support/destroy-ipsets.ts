import { execFileSync } from 'node:child_process'

const ATTEMPTS_MAX = 50

/** All of this namespace. The kernel lets go of a set some time after the last rule about it went. */
export async function destroyIpsets(): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    try {
      execFileSync('ipset', ['destroy'], { stdio: 'pipe' })
      return
    } catch (error) {
      if (attempt === ATTEMPTS_MAX) throw error
    }
    await new Promise(resolve => setTimeout(resolve, 20))
  }
}
