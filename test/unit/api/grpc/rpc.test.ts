import { expect, it } from 'vitest'
import { MessageReader } from '../../../../src/api/grpc/rpc.ts'
import { framed } from '../../../support/api/localv1.ts'

it('messages are read however their bytes are cut', () => {
  const messages = ['', 'one', '', 'three and more', '5'].map(text => Buffer.from(text))
  const bytes = Buffer.concat(messages.map(framed))
  for (let first = 0; first <= bytes.length; first++) {
    for (let second = first; second <= bytes.length; second++) {
      const reader = new MessageReader(100)
      const heard: Buffer[] = []
      for (const chunk of [bytes.subarray(0, first), bytes.subarray(first, second), bytes.subarray(second)])
        reader.read(chunk, message => heard.push(message))
      expect(heard).toEqual(messages)
      expect(reader.isCutOff).toBe(false)
    }
  }
})

it('a message that is not whole is not read, and the stream is cut off there', () => {
  const bytes = Buffer.concat([framed(Buffer.from('whole')), framed(Buffer.from('not'))])
  for (let missing = 1; missing <= 7; missing++) {
    const reader = new MessageReader(100)
    const heard: string[] = []
    reader.read(bytes.subarray(0, bytes.length - missing), message => heard.push(message.toString()))
    expect(heard).toEqual(['whole'])
    expect(reader.isCutOff).toBe(true)
  }
})

it('what stands before a message that is refused is taken', () => {
  const heard: string[] = []
  const bytes = Buffer.concat([framed(Buffer.from('taken')), framed(Buffer.alloc(101))])
  expect(() => new MessageReader(100).read(bytes, message => heard.push(message.toString()))).toThrow(
    'a message of 101 bytes is too long; the limit is 100',
  )
  expect(heard).toEqual(['taken'])
})
