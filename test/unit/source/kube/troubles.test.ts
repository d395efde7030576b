import { beforeEach, describe, expect, it } from 'vitest'
import type { Trouble } from '../../../../src/source/kube/course.ts'
import { Troubles } from '../../../../src/source/kube/troubles.ts'

const SERVER: Trouble = { scope: 'server', text: 'refused' }
const DENIED: Trouble = { scope: 'resource', text: 'denied' }

let said: string[]
let troubles: Troubles

beforeEach(() => {
  said = []
  troubles = new Troubles('https://api', ({ kind, place, text }) => said.push(`${kind} ${place}: ${text}`))
})

describe('troubles', () => {
  it('of the server are said once for all resources, and once when the last of them is over', () => {
    troubles.set('services', SERVER)
    troubles.set('nodes', SERVER)
    troubles.set('nodes', { ...SERVER, text: 'status 503' })
    expect(said).toEqual(['failed https://api: refused; what is known stays'])
    troubles.set('services', undefined)
    expect(said.length).toBe(1)
    troubles.set('nodes', undefined)
    expect(said.slice(1)).toEqual(['recovered https://api: the API server answers again'])
    expect(troubles.text).toBeUndefined()
  })

  it('of a resource are its own', () => {
    troubles.set('services', DENIED)
    troubles.set('nodes', DENIED)
    troubles.set('services', undefined)
    expect(said).toEqual([
      'failed services: denied; what is known stays',
      'failed nodes: denied; what is known stays',
      'recovered services: read again',
    ])
    expect(troubles.text).toBe('nodes: denied')
  })

  it('of both sorts follow one another without being said twice', () => {
    troubles.set('services', DENIED)
    troubles.set('services', SERVER)
    expect(troubles.text).toBe('https://api: refused')
    troubles.set('services', DENIED)
    troubles.set('services', undefined)
    expect(said.map(line => line.split(':')[0])).toEqual([
      'failed services',
      'failed https',
      'recovered https',
      'recovered services',
    ])
  })

  it('that are none stand in no status', () => {
    troubles.set('servicecidrs', { scope: 'absent', text: 'not served' })
    expect(troubles.text).toBeUndefined()
    expect(said).toEqual(['absent servicecidrs: not served'])
  })

  it('with what is not needed are no failures, which would end whoever reads once', () => {
    troubles.set('servicecidrs', { scope: 'denied', text: 'denied' })
    troubles.set('servicecidrs', undefined)
    expect(said).toEqual(['absent servicecidrs: denied', 'recovered servicecidrs: read again'])
  })
})
